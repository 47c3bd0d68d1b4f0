"""Rows of a run's own batches: shared random numbers are found at the batch's size, independent rows keep the level."""

import numpy as np
import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.noise import counted_noise

from parity.base.files import write_arrays, write_json
from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.shard_io import write_shard
from parity.equality.alike import Alike
from parity.equality.faults import twins, twins_between, with_noise
from parity.equality.targets.discrete import long_targets
from parity.experiment.options import options
from tests.equality.test_layers import SHARED, TASK, Workplace

CHAIN = next(t for t in long_targets({"positions": 16, "lag": 0, "steps": 0}, 1000) if t.name.startswith("chain"))


def of_chain(decoder, n, batch, seed, **options):
    """The row of n sequences of a chain of 64 tokens, decoded in batches."""
    parts = []
    for first in range(0, n, batch):
        rows = range(first, min(first + batch, n))
        start = torch.zeros(len(rows), dtype=torch.int64)
        model = CHAIN.model(len(rows))
        parts.append(record(model, start, decoder(model, start, noise=counted_noise(seed, rows), **options)))
    tokens, step = (torch.cat([x[k] for x in map(vars, parts)]) for k in ("tokens", "step"))
    size = np.concatenate([np.full(len(p.tokens), len(p.tokens)) for p in parts])
    alike = Alike(tokens.numpy(), size, size, step.numpy())
    for first in range(0, n, 16):
        alike.add(first, CHAIN.laws(tokens[first : first + 16]))
    return alike.row(seed=seed)


@pytest.mark.parametrize("batch", [9, 64])
def test_rows_that_share_their_noise_are_found_in_the_runs_own_batches(batch):
    shared = of_chain(with_noise(ar, twins_between), 64, batch, 0)
    assert shared["p_value"] < 1e-6 and "1 apart" in shared["note"] and "agreement by place" in shared["note"]
    assert of_chain(ar, 64, batch, 0)["p_value"] > 0.05


def test_numbers_that_are_shared_by_passes_are_found_where_rows_stand_apart():
    """Rows of sjd accept unlike numbers of drafts, so equal numbers serve other places in each."""
    shared = of_chain(with_noise(sjd, twins_between), 96, 32, 0, window=16)
    assert shared["p_value"] < 1e-4 and "by place" not in shared["note"]
    assert of_chain(sjd, 96, 32, 0, window=16)["p_value"] > 0.05


def test_numbers_that_invert_a_distribution_function_are_found_by_ranks():
    """Antithetic rows: each second one has the numbers of the one before, less 1, turned round."""
    u = torch.rand(64, CHAIN.length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[1::2] = 1 - u[::2]
    tokens = torch.zeros(64, CHAIN.length, dtype=torch.int64)
    for i in range(CHAIN.length):
        tokens[:, i] = (CHAIN.laws(tokens)[:, i].cumsum(-1) < u[:, i : i + 1]).sum(-1)
    alike = Alike(tokens.numpy(), np.full(64, 32), np.full(64, 32), None)
    alike.add(0, CHAIN.laws(tokens))
    found = alike.row()
    assert found["p_value"] < 1e-6 and found["note"] == "most in ranks by place of rows 1 apart"


def test_independent_rows_keep_the_level():
    """100 families, each the test alone: an e-value's inverse is below .05 in fewer."""
    p = [of_chain(ar, 8, 8, seed)["p_value"] for seed in range(100)]
    assert np.mean(np.array(p) <= 0.05) <= 0.05


own = loop.noise_of


def paired(rows, loaded, spec):
    """Every second row of a batch has the numbers of the one before."""
    return twins(own(rows, loaded, spec))


CAPTIONS = np.random.default_rng(0).standard_normal((32, 24, 128), np.float32)  # what a text encoder says of them
IMAGES = {"captions": np.array(["a ring"] * 32), "embeddings": CAPTIONS, "valid": np.ones((32, 24), int)}


@pytest.mark.parametrize(("kind", "method"), [("discrete", "sjd"), ("anysubset", "assd")])
def test_the_layer_finds_a_run_whose_batch_shares_its_noise(kind, method, tmp_path, monkeypatch):
    """On the embedded models, in batches of 32 as the default run's; decoded alone, nothing is shared."""
    for name, value in {"rows": 32, "length": 128, "masked": 0.95}.items():
        monkeypatch.setitem(TASK, name, value)
    place = Workplace(kind, tmp_path)
    images = {"ids": np.array([f"{i}/0" for i in range(32)]), **IMAGES}
    every = images if kind == "discrete" else place.inputs

    def said(seed, noise, n, batch):
        monkeypatch.setattr(loop, "noise_of", noise)
        folder, rows = tmp_path / f"{method}-{seed:08}", {k: v[:n] for k, v in every.items()}
        spec = {"method": method, "options": options(kind, method, {}), "seed": seed, **SHARED[kind]}
        write_json(folder / "spec.json", spec)
        write_arrays(tmp_path / "inputs.npz", **rows)
        shard = loop.decode(kind, loop.load(kind, place.manifest, spec), spec, rows, batch=batch)
        write_shard(folder / "shards/0-of-1.npz", shard.columns, {})
        found, _ = place.run("teacher-forced", folder, {"seeds": [11]})
        return next(r for r in found["rows"] if r["test"] == "rows of a batch")

    assert said(0, paired, 32, 32)["p_holm"] < 1e-3
    assert said(2, own, 32, 32)["p_value"] > 0.05
    assert said(3, own, 2, 1)["verdict"] == "not run"
