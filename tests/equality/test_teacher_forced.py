"""Teacher-forced: the battery finds a law that is not the target's, and nothing in a correct decoder's tokens."""

import numpy as np
import pytest
import torch
from parity_certify import teacher_forced
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.noise import counted_noise

from parity.base.errors import ParityError
from parity.decode.discrete import record
from parity.equality.faults.discrete import JACOBI, jacobi
from parity.equality.targets.discrete import Target
from parity.models.discrete.tabular import random_table

TARGET = Target("six codes", random_table(6, 5, torch.Generator().manual_seed(0)), 5, 2)


def draw_sample(decoder, n, seed=0, **options):
    """Draw tokens and steps [n, L] by a decoder on TARGET; return them and the target's laws [n, L, V] there."""
    model = TARGET.make_model(n)
    start = torch.zeros(n, dtype=torch.int64)
    decoded = record(model, start, decoder(model, start, noise=counted_noise(seed, range(n)), **options))
    inputs = torch.cat([torch.zeros(n, 1, dtype=torch.int64), decoded.tokens[:, :-1]], 1)
    p = TARGET.make_model(n).logits(inputs, torch.arange(-1, 4).expand(n, -1)).softmax(-1)
    return decoded.tokens.numpy(), decoded.step.numpy(), p


def find_smallest_p(rows):
    return min(r["p_holm"] for r in rows if r["p_holm"] is not None)


def run_battery(tokens, p, seed=0, **values):
    """Run the battery of tests of tokens [n, L] against laws p [n, L, V]; `values` are further arguments of it."""
    return teacher_forced.run_battery(tokens, teacher_forced.wrap_law(p), 2, rng=np.random.default_rng(seed), **values)


def test_the_battery_passes_a_lossless_decoder():
    tokens, step, p = draw_sample(sjd, 5_000, window=3)
    rows = run_battery(tokens, p, slot=teacher_forced.assign_slots(step), groups=np.arange(6) % 3, chunk=1000)
    some_tests = {"log p", "top-1 hit", "top-5 hit", "rank PIT, row 2", "equals upper, slot 1", "group 2"}
    assert {r["test"] for r in rows} >= some_tests
    assert find_smallest_p(rows) > 0.05


def test_the_battery_rejects_a_stale_law():
    tokens, _, p = draw_sample(jacobi, 5_000, rules=JACOBI["stored q"])
    assert find_smallest_p(run_battery(tokens, p)) < 1e-4


def test_chunks_change_only_the_randomised_pit():
    tokens, _, p = draw_sample(ar, 500)
    a, b = (run_battery(tokens, p, chunk=chunk) for chunk in (500, 77))
    statistics_a, statistics_b = ([r["statistic"] for r in rows if "PIT" not in r["test"]] for rows in (a, b))
    assert statistics_a == pytest.approx(statistics_b)
    assert [r["n"] for r in a] == [r["n"] for r in b]


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
        (lambda p, x: p[7, 2].fill_(float("nan")), "model m, position 2, row 7: p is not a law"),
        (lambda p, x: p[7, 2].mul_(1.1), "model m, position 2, row 7: p is not a law"),
        (
            lambda p, x: p[7, 2].scatter_(0, torch.tensor(x[7, 2]), 0).div_(p[7, 2].sum()),
            "position 2, row 7: token . of probability zero",
        ),
    ],
)
def test_bad_laws_are_errors_that_name_their_position(spoil, message):
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
