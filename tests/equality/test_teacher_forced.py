"""Tokens under the target's distributions: the battery finds another distribution, the test of rows shared random
numbers."""

import numpy as np
import pytest
import torch
from parity_certify import teacher_forced
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.noise import counted_noise

from parity.base.errors import ParityError
from parity.base.files import write_arrays, write_json
from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.shard_io import write_shard
from parity.equality.row_dependence import RowDependence
from parity.equality.targets.discrete import Target, long_targets
from parity.experiment.options import options
from parity.models.discrete.tabular import random_table
from tests.equality.faults import change_noise, share_noise, share_noise_in_runs
from tests.equality.faults.discrete import VARIANTS
from tests.equality.test_layers import SHARED, TASK, Workplace

TARGET = Target("six codes", random_table(6, 5, torch.Generator().manual_seed(0)), 5, 2)


def draw_sample(decoder, n, seed=0, **options):
    """Draw tokens and steps [n, L] by a decoder on TARGET; return them and the target's distributions [n, L, V]
    there."""
    model = TARGET.make_model(n)
    start = torch.zeros(n, dtype=torch.int64)
    decoded = record(model, start, decoder(model, start, noise=counted_noise(seed, range(n)), **options))
    inputs = torch.cat([torch.zeros(n, 1, dtype=torch.int64), decoded.tokens[:, :-1]], 1)
    p = TARGET.make_model(n).logits(inputs, torch.arange(-1, 4).expand(n, -1)).softmax(-1)
    return decoded.tokens.numpy(), decoded.step.numpy(), p


def find_smallest_p(rows):
    return min(r["p_holm"] for r in rows if r["p_holm"] is not None)


def run_battery(tokens, p, seed=0, **values):
    """Run the battery of tests of tokens [n, L] against distributions p [n, L, V]; `values` are further arguments of
    it."""
    return teacher_forced.run_battery(
        tokens, teacher_forced.wrap_probs(p), 2, rng=np.random.default_rng(seed), **values
    )


def test_the_battery_passes_a_lossless_decoder():
    tokens, step, p = draw_sample(sjd, 5_000, window=3)
    rows = run_battery(tokens, p, slot=teacher_forced.assign_slots(step), groups=np.arange(6) % 3, chunk=1000)
    some_tests = {"log p", "top-1 hit", "top-5 hit", "rank PIT, row 2", "equals upper, slot 1", "group 2"}
    assert {r["test"] for r in rows} >= some_tests
    assert find_smallest_p(rows) > 0.05


def test_the_battery_rejects_tokens_from_the_logits_of_another_place():
    tokens, _, p = draw_sample(VARIANTS["spec: bonus wrong index"][0], 5_000)
    assert find_smallest_p(run_battery(tokens, p)) < 1e-4


def test_slot_is_known_before_the_token_and_acceptance_is_not():
    """On a correct decoder: strata by slot pass, strata by 'the run ended here' (the token was a correction) reject."""
    tokens, step, p = draw_sample(sjd, 20_000, window=3)
    slot = teacher_forced.assign_slots(step)
    ends_run = np.concatenate([step[:, 1:] != step[:, :-1], np.ones((len(step), 1), bool)], 1)
    by_slot = [r for r in run_battery(tokens, p, slot=slot, chunk=5000) if "slot" in r["test"]]
    by_end = [r for r in run_battery(tokens, p, slot=ends_run.astype(int), chunk=5000) if "slot" in r["test"]]
    assert find_smallest_p(by_slot) > 0.01
    assert find_smallest_p(by_end) < 1e-6


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p, x: p[7, 2].fill_(float("nan")), "model m, position 2, row 7: p is not a distribution"),
        (lambda p, x: p[7, 2].mul_(1.1), "model m, position 2, row 7: p is not a distribution"),
        (
            lambda p, x: p[7, 2].scatter_(0, torch.tensor(x[7, 2]), 0).div_(p[7, 2].sum()),
            "position 2, row 7: token . of probability zero",
        ),
    ],
)
def test_bad_distributions_are_errors_that_name_their_position(spoil, message):
    tokens, _, p = draw_sample(ar, 20)
    spoil(p, tokens)
    with pytest.raises(ParityError, match=message):
        run_battery(tokens, p, model="m", chunk=6)


def test_a_lossy_decoder_that_leaves_the_support_is_rejected():
    tokens, _, p = draw_sample(ar, 20)
    p[7, 2].scatter_(0, torch.tensor(tokens[7, 2]), 0).div_(p[7, 2].sum())
    rows = run_battery(tokens, p, model="m", chunk=6, strict=False)
    assert (rows[0]["test"], rows[0]["verdict"]) == ("support", "rejected")
    assert "1 of" in rows[0]["note"]
    assert all(np.isfinite(r["statistic"]) for r in rows if r["statistic"] is not None)


CHAIN = next(t for t in long_targets({"positions": 16, "lag": 0, "steps": 0}, 1000) if t.name.startswith("chain"))


def make_chain_row(decoder, n, batch, seed, **options):
    """Decode n sequences of a chain of 64 tokens in batches, and return the result row of the test of independence."""
    decoded = []
    for first in range(0, n, batch):
        rows = range(first, min(first + batch, n))
        start = torch.zeros(len(rows), dtype=torch.int64)
        model = CHAIN.make_model(len(rows))
        decoded.append(record(model, start, decoder(model, start, noise=counted_noise(seed, rows), **options)))
    tokens, step = (torch.cat([x[k] for x in map(vars, decoded)]) for k in ("tokens", "step"))
    size = np.concatenate([np.full(len(d.tokens), len(d.tokens)) for d in decoded])
    dependence = RowDependence(tokens.numpy(), size, size, step.numpy())
    for first in range(0, n, 16):
        dependence.add(first, CHAIN.compute_probs(tokens[first : first + 16]))
    return dependence.make_row(seed=seed)


@pytest.mark.parametrize("batch", [9, 64])
def test_shared_noise_is_found_in_batches_of_a_run(batch):
    shared = make_chain_row(change_noise(ar, share_noise_in_runs), 64, batch, 0)
    assert shared["p_value"] < 1e-6
    assert shared["note"] == "most in agreement by place of rows 1 apart"
    assert make_chain_row(ar, 64, batch, 0)["p_value"] > 0.05


def test_antithetic_rows_are_found_by_ranks():
    """Every second row inverts its distribution functions at 1 - u, u the numbers of the row before."""
    u = torch.rand(64, CHAIN.length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[1::2] = 1 - u[::2]
    tokens = torch.zeros(64, CHAIN.length, dtype=torch.int64)
    for i in range(CHAIN.length):
        tokens[:, i] = (CHAIN.compute_probs(tokens)[:, i].cumsum(-1) < u[:, i : i + 1]).sum(-1)
    dependence = RowDependence(tokens.numpy(), np.full(64, 32), np.full(64, 32), None)
    dependence.add(0, CHAIN.compute_probs(tokens))
    row = dependence.make_row()
    assert row["p_value"] < 1e-6
    assert row["note"] == "most in ranks by place of rows 1 apart"


def test_independent_rows_keep_the_level():
    """An e-value's inverse is below .05 in fewer than 5 of 100 samples."""
    p = [make_chain_row(ar, 8, 8, seed)["p_value"] for seed in range(100)]
    assert np.mean(np.array(p) <= 0.05) <= 0.05


NOISE_OF = loop.noise_of


def make_paired_noise(rows, loaded, spec):
    """Make the noise of a run in which every second row has the random numbers of the row before: a fault."""
    return share_noise(NOISE_OF(rows, loaded, spec))


CAPTIONS = np.random.default_rng(0).standard_normal((32, 24, 128), np.float32)  # stand for encoded captions
IMAGES = {"captions": np.array(["a ring"] * 32), "embeddings": CAPTIONS, "valid": np.ones((32, 24), int)}


@pytest.mark.parametrize(
    ("kind", "method"), [pytest.param("discrete", "sjd", marks=pytest.mark.long), ("anysubset", "assd")]
)
def test_the_layer_finds_a_batch_that_shares_noise(kind, method, tmp_path, monkeypatch):
    """On the embedded models, in batches of 32 as the default run's; decoded alone, nothing is shared."""
    for name, value in {"rows": 32, "length": 128, "masked": 0.95}.items():
        monkeypatch.setitem(TASK, name, value)
    workplace = Workplace(kind, tmp_path)
    images = {"ids": np.array([f"{i}/0" for i in range(32)]), **IMAGES}
    inputs = images if kind == "discrete" else workplace.inputs

    def make_row(seed, noise, n, batch):
        """Decode n rows with the noise that `noise` makes, run the layer, and return its row about rows of a batch."""
        monkeypatch.setattr(loop, "noise_of", noise)
        folder = tmp_path / f"{method}-{seed:08}"
        rows = {k: v[:n] for k, v in inputs.items()}
        spec = {"method": method, "options": options(kind, method, {}), "seed": seed, **SHARED[kind]}
        write_json(folder / "spec.json", spec)
        write_arrays(tmp_path / "inputs.npz", **rows)
        shard = loop.decode(kind, loop.load(kind, workplace.manifest, spec), spec, rows, batch=batch)
        write_shard(folder / "shards/0-of-1.npz", shard.columns, {})
        entries, _ = workplace.run("teacher-forced", folder, {"seeds": [11]})
        return next(r for r in entries["rows"] if r["test"] == "rows of a batch")

    assert make_row(0, make_paired_noise, 32, 32)["p_holm"] < 1e-3
    assert make_row(2, NOISE_OF, 32, 32)["p_value"] > 0.05
    assert make_row(3, NOISE_OF, 2, 1)["verdict"] == "not run"
