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
from parity.equality.faults.discrete import jacobi
from parity.equality.targets.discrete import Target
from parity.models.discrete.tabular import random_table

TARGET = Target("six codes", random_table(6, 5, torch.Generator().manual_seed(0)), 5, 2)


def sample(decoder, n, seed=0, **options):
    """Tokens and steps [n, L], and the laws [n, L, V] that the target gives at these tokens."""
    model, start = TARGET.model(n), torch.zeros(n, dtype=torch.int64)
    done = record(model, start, decoder(model, start, noise=counted_noise(seed, range(n)), **options))
    inputs = torch.cat([torch.zeros(n, 1, dtype=torch.int64), done.tokens[:, :-1]], 1)
    p = TARGET.model(n).logits(inputs, torch.arange(-1, 4).expand(n, -1)).softmax(-1)
    return done.tokens.numpy(), done.step.numpy(), p


def smallest(found):
    return min(r["p_holm"] for r in found if r["p_holm"] is not None)


def battery(tokens, p, seed=0, **values):
    return teacher_forced.run_battery(tokens, teacher_forced.wrap_law(p), 2, rng=np.random.default_rng(seed), **values)


def test_battery_passes_a_lossless_decoder_and_rejects_a_stale_law():
    tokens, step, p = sample(sjd, 5_000, window=3)
    good = battery(tokens, p, slot=teacher_forced.assign_slots(step), groups=np.arange(6) % 3, chunk=1000)
    assert {r["test"] for r in good} >= {
        "log p",
        "top-1 hit",
        "top-5 hit",
        "rank PIT, row 2",
        "equals upper, slot 1",
        "group 2",
    }
    assert smallest(good) > 0.05
    tokens, _, p = sample(jacobi, 5_000, fault="stored q")
    assert smallest(battery(tokens, p)) < 1e-4


def test_battery_does_not_depend_on_chunks_but_for_the_randomised_pit():
    tokens, _, p = sample(ar, 500)
    a, b = battery(tokens, p, chunk=500), battery(tokens, p, chunk=77)
    assert [r["statistic"] for r in a if "PIT" not in r["test"]] == pytest.approx(
        [r["statistic"] for r in b if "PIT" not in r["test"]]
    )
    assert [r["n"] for r in a] == [r["n"] for r in b]


def test_slot_is_known_before_the_token_and_acceptance_is_not():
    """On a correct decoder: strata by slot pass, strata by 'the run ended here' (the token was a correction) reject."""
    tokens, step, p = sample(sjd, 20_000, window=3)
    slot = teacher_forced.assign_slots(step)
    ended = np.concatenate([step[:, 1:] != step[:, :-1], np.ones((len(step), 1), bool)], 1)
    sound = [r for r in battery(tokens, p, slot=slot, chunk=5000) if "slot" in r["test"]]
    unsound = [r for r in battery(tokens, p, slot=ended.astype(int), chunk=5000) if "slot" in r["test"]]
    assert smallest(sound) > 0.01
    assert smallest(unsound) < 1e-6


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
def test_bad_laws_are_errors_that_name_their_place(spoil, message):
    tokens, _, p = sample(ar, 20)
    spoil(p, tokens)
    with pytest.raises(ParityError, match=message):
        battery(tokens, p, model="m", chunk=6)


def test_a_lossy_decoder_may_leave_the_support_and_is_rejected_for_it():
    tokens, _, p = sample(ar, 20)
    p[7, 2].scatter_(0, torch.tensor(tokens[7, 2]), 0).div_(p[7, 2].sum())
    found = battery(tokens, p, model="m", chunk=6, strict=False)
    assert found[0]["test"] == "support" and found[0]["verdict"] == "rejected" and "1 of" in found[0]["note"]
    assert all(np.isfinite(r["statistic"]) for r in found if r["statistic"] is not None)
