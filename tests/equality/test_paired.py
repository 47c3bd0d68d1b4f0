"""Paired by prompt: differences are found, equal sides are not told apart, and prompts must be the same."""

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.equality.layers.discrete import paired


def pairs(n=300, d=4, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    prompt = 2 * rng.standard_normal((n, d))
    ids = [f"p{i}/0" for i in range(n)]
    return prompt + rng.standard_normal((n, d)) + shift, prompt + rng.standard_normal((n, d)), ids


def features(x, y, ids):
    return paired.matched("features", x, y, ids, ids)


def scores(x, y, ids, others=None):
    return paired.matched("s", x[:, 0], y[:, 0], ids, others or ids)


def test_paired_rows_find_a_shift_and_no_shift():
    for shift, found in ((0.0, False), (0.4, True)):
        x, y, ids = pairs(shift=shift)
        t, boot, tost = paired.scalar_rows(scores(x, y, ids), margin=0.3, resamples=499)
        assert (t["p_value"] <= 0.05) == found and t["low"] < t["effect"] < t["high"]
        assert boot["verdict"] == f"interval {'excludes' if found else 'holds'} 0"
        assert tost["verdict"].startswith("equivalent") == (not found)
        assert (paired.mmd_row(features(x, y, ids), swaps=199)["p_value"] <= 0.05) == found


def test_fid_swap_finds_loss_of_diversity():
    x, y, ids = pairs()
    real = 2 * np.random.default_rng(1).standard_normal((500, 4))
    assert paired.fid_row(real, features(x, y, ids))["p_value"] > 0.05
    assert paired.fid_row(real, features(0.8 * x, y, ids))["p_value"] <= 0.05


def test_the_order_of_images_does_not_matter_and_repeats_are_averaged():
    x, y, ids = pairs(100)
    turn = np.random.default_rng(0).permutation(100)
    turned = paired.matched("s", x[turn, 0], y[:, 0], [ids[i] for i in turn], ids)
    both = [paired.scalar_rows(sides, margin=0.1, resamples=99) for sides in (scores(x, y, ids), turned)]
    assert both[0] == both[1]
    twice = [f"p{i // 2}/{i % 2}" for i in range(100)]
    assert paired.scalar_rows(scores(x, y, twice), margin=0.1, resamples=99)[0]["n"] == 50


def test_sides_that_cannot_be_compared_are_told():
    x, y, ids = pairs(20)
    with pytest.raises(
        ParityError, match="prompt sets differ; only on the first side: p19/0; only on the second side: other/0"
    ):
        scores(x, y, ids, [*ids[:-1], "other/0"])
    with pytest.raises(ParityError, match="s: 19 values for 20 images"):
        scores(x[:19], y, ids)
    with pytest.raises(ParityError, match="second side: an image id stands twice: p0/0"):
        scores(x, y, ids, [ids[0], *ids[:-1]])
    x[3, 0] = np.nan
    with pytest.raises(ParityError, match="s: not finite for image p3/0"):
        scores(x, y, ids)


def test_few_prompts_and_equal_sides_are_not_run():
    x, y, ids = pairs(5)
    few = paired.scalar_rows(scores(x, y, ids), margin=0.1)
    assert {r["note"] for r in few} == {"not run: needs n >= 10 prompts"}
    x, y, ids = pairs(20)
    equal = paired.scalar_rows(scores(x, x, ids), margin=0.1)
    assert {r["verdict"] for r in equal} == {"not run"} and equal[0]["effect"] == 0
    wide = np.zeros((20, 30))
    assert paired.fid_row(np.eye(30), features(wide, wide, ids))["note"] == "not run: needs n >= 31 images"
