"""Plots and pictures: what is drawn is what was measured."""

import math

import numpy as np
import pandas as pd
import pytest

from parity.report import figures, maps
from parity.report.pictures import Column, sheets, worst_first


def test_maps_leave_out_what_takes_a_token_a_pass_and_show_the_rest_where_it_is():
    plain, quick = np.tile(np.arange(1, 17), (3, 1)), np.tile(np.repeat(np.arange(1, 9), 2), (3, 1))
    drawn = maps.acceptance_maps({"plain": plain, "quick": quick}, {"plain": 4, "quick": 4})
    assert drawn is not None and set(drawn[1]["label"]) == {"quick"} and (drawn[1]["mean_run_length"] == 2).all()
    assert drawn[1][["row", "column"]].iloc[5].tolist() == [1, 1]
    assert maps.acceptance_maps({"plain": plain}, {"plain": 4}) is None


def test_an_interval_never_ends_on_the_wrong_side():
    row = pd.Series({"x": 1.0, "x_low": 1.2, "x_high": 1.5, "y": 2.0, "y_se": 0.5, "z": 3.0})
    assert figures.interval_of(row, "x") == (0.0, 0.5)
    assert figures.interval_of(row, "y") == pytest.approx((0.98, 0.98)) and figures.interval_of(row, "z") == (0.0, 0.0)


def test_pictures_of_a_model_are_compared_with_its_own_plain_decoding():
    """Cosines of a small model and of a large one lie apart; the difference that counts is within a model."""
    pixels, cosines = np.zeros((2, 8, 8, 3), dtype=np.uint8), ([0.9, 0.9], [0.9, 0.7], [0.2, 0.2], [0.1, 0.2])
    names = (("plain", True, "large"), ("sjd", False, "large"), ("plain", True, "small"), ("sjd", False, "small"))
    columns = [Column(n, pixels, np.array(c), b, m) for (n, b, m), c in zip(names, cosines, strict=True)]
    order, worst = worst_first(columns)
    assert order.tolist() == [1, 0] and worst == pytest.approx([-0.2, -0.1])


def test_sheets_hold_as_many_prompts_as_there_is_room_for_and_each_picture_once():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 255, (2, 64, 32, 32, 3), dtype=np.uint8)
    all_of, shown = sheets([one, other, one], 10**9)
    assert shown == 64 and all_of.of == [0, 1, 0] and len(all_of.uris) == 2 and all_of.side == 32
    few, fewer = sheets([one, other, one], sum(map(len, all_of.uris)) // 2)
    assert 8 <= fewer < 64 and sum(map(len, few.uris)) <= sum(map(len, all_of.uris)) // 2


def test_speed_and_quality_is_drawn_where_both_were_measured():
    rows = pd.DataFrame(
        {"label": ["plain", "sjd"], "role": ["reference", "method"], "model": "m", "method": "x", "key": "k"}
    )
    assert figures.speed_quality(rows) is None
    drawn = figures.speed_quality(
        rows.assign(fid=[10.0, 11.0], fid_se=0.5, speedup=[1.0, math.nan], step_compression=[1.0, 2.0])
    )
    assert drawn is not None and len(drawn[0].axes) == 2 and drawn[1]["fid_plain_band_low"].nunique() == 1
