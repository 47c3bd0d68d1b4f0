"""Acceptance by slot from the passes of made decoders whose acceptance is known."""

from types import SimpleNamespace

import numpy as np
import pytest

from parity.base.files import canonical
from parity.metrics import passes
from parity.metrics.estimates import columns_of


def drawn(shares, rows, length, seed=0):
    """kept [rows, passes] of a decoder that accepts slot j with probability shares[j - 1] given the one before, up to
    `length` tokens; the last pass is cut."""
    rng, every = np.random.default_rng(seed), []
    for _ in range(rows):
        made = []
        while sum(made) < length:
            k = 1 + int(np.cumprod(rng.random(len(shares)) < np.array(shares)).sum())
            made.append(min(k, length - sum(made)))
        every.append(made)
    wide = max(map(len, every))
    return np.array([made + [0] * (wide - len(made)) for made in every], dtype=np.int16)


def test_shares_given_are_shares_found():
    shares = [0.9, 0.6, 0.3]
    found = passes.by_slot(drawn(shares, 200, 150))
    assert found == pytest.approx(shares, abs=0.03)
    assert passes.by_slot(drawn(shares[::-1], 200, 150))[0] < 0.4  # the order of slots is seen


def test_the_pass_that_the_picture_cuts_short_is_left_out():
    kept = np.array([[3, 3, 1, 0], [3, 2, 0, 0]])
    assert passes.inner(kept).tolist() == [3, 3, 3] and passes.by_slot(kept) == [1.0, 1.0]
    assert passes.by_slot(np.ones((4, 9))) == [] == passes.by_slot(np.array([[5], [4]]))


def test_figures_of_requests():
    shard = SimpleNamespace(
        kept=np.array([[2, 2, 1], [2, 1, 2]]), step=np.tile([1, 1, 2, 2, 3], (2, 1)), seconds=np.array([2.0, 2.0]),
        single_seconds=np.array([0.5, np.nan]), first_seconds=np.array([0.25, 0.25]),
        batch=np.array([2, 2]), at_once=np.array([2, 2]), nfe=np.array([3, 3]), passes=np.array([6, 6]),
    )  # fmt: skip
    shard.columns = vars(shard).copy()
    found = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert found["acceptance_length"] == pytest.approx(10 / 6) and found["request_tokens_per_second"] == 2.5
    assert found["request_tokens_per_second_single"] == 10 and found["first_token_seconds"] == 0.25
    assert found["acceptance_by_slot"] == canonical([0.75])
    forced = SimpleNamespace(shard=shard, forced=np.arange(5) == 0, groups=np.arange(2))
    assert passes.measure_requests(forced)["request_tokens_per_second"].value == 2  # a forced token is no work
    shard.at_once = np.array([1, 1])  # in the other's place when it was done: each waits for its own passes alone
    found = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert found["request_tokens_per_second"] == 5
