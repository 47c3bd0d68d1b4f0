"""Plots and pictures: what is drawn is what was measured."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.report import figures, maps
from parity.report.figures import spread
from parity.report.pictures import Column, sheets, worst_first


def test_maps_leave_out_what_takes_a_token_a_pass_and_show_the_rest_where_it_is():
    plain, quick = np.tile(np.arange(1, 17), (3, 1)), np.tile(np.repeat(np.arange(1, 9), 2), (3, 1))
    drawn = maps.acceptance_maps({"plain": plain, "quick": quick})
    assert drawn is not None and set(drawn[1]["label"]) == {"quick"} and (drawn[1]["mean_run_length"] == 2).all()
    assert drawn[1][["row", "column"]].iloc[5].tolist() == [1, 1]
    assert maps.acceptance_maps({"plain": plain}) is None


def test_passes_that_few_images_take_part_in_are_left_out():
    step = np.array([[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 2, 2]])
    data = maps.made_by_pass(step)
    assert data["last_pass"].max() == 2  # in the third pass one of three images is left
    assert data["mean"].tolist() == pytest.approx([(4 + 1 + 2) / 3, 1.5]) and data["images"].tolist() == [3, 2]


def test_top_1_maps_are_means_over_images_without_forced_places():
    first, second = np.full((2, 16), 0.5), np.full((3, 16), 0.25)
    first[:, 3], first[0, 0] = np.nan, 1.0
    _, data = maps.top1_maps({"ar": first, "sjd": second}, np.zeros((2, 8, 8, 3), np.uint8), "ar")
    ar = data[data["label"] == "ar"].set_index(["row", "column"])["mean_top1"]
    assert ar[0, 0] == 0.75 and np.isnan(ar[0, 3]) and ar[3, 3] == 0.5
    assert (data[data["label"] == "sjd"]["mean_top1"] == 0.25).all()
    _, share = maps.top1_shares({"ar": first}, figures.styles(["ar"], [True]))
    assert share["top1"].max() == 1 and share["top1"].median() == 0.5 and share["top1"].notna().all()


def test_places_of_kept_drafts_are_drawn_for_the_first_cells_and_kept_for_all():
    shares = {f"cell {i}": (np.full(16, i / 10), np.full(16, i / 10)) for i in range(6)}
    drawn = maps.draft_maps(shares, figures.styles(list(shares), [False] * 6))
    assert drawn is not None and drawn[1]["label"].nunique() == 6
    assert [ax.get_title() for ax in drawn[0].axes if ax.get_title()] == [f"cell {i}" for i in range(4)]
    assert maps.draft_maps({}, {}) is None


def test_the_noise_band_is_wider_than_an_interval_by_root_two():
    band = figures.noise_band(pd.DataFrame({"fid": [10.0, 12.0], "fid_se": [1.0, 1.0]}), "fid")
    assert band == pytest.approx((11 - 1.96 * 2**0.5, 11 + 1.96 * 2**0.5))
    assert figures.noise_band(pd.DataFrame({"fid": [10.0]}), "fid") is None


def test_an_interval_never_ends_on_the_wrong_side():
    row = pd.Series({"x": 1.0, "x_low": 1.2, "x_high": 1.5, "y": 2.0, "y_se": 0.5, "z": 3.0})
    assert figures.reach_of(row, "x") == (0.0, 0.5)
    assert figures.reach_of(row, "y") == pytest.approx((0.98, 0.98)) and figures.reach_of(row, "z") == (0.0, 0.0)


def test_the_tests_furthest_from_the_diagonal_are_named():
    rng = np.random.default_rng(0)
    honest = {f"honest {i}": rng.random(200) for i in range(8)}
    null = pd.concat(
        [pd.DataFrame({"test": t, "p_value": p}) for t, p in {**honest, "liar": rng.random(200) ** 4}.items()]
    )
    drawn = figures.p_value_qq(null, most=3)
    assert drawn is not None and {"liar", "the other 7 tests"} <= set(drawn[1]["group"])
    few = figures.p_value_qq(null[null["test"].isin(["liar", "honest 0"])])
    assert few is not None and set(few[1]["group"]) == {"liar", "honest 0"}
    assert figures.p_value_qq(pd.DataFrame(columns=["test", "p_value"])) is None


def test_no_two_methods_look_alike_in_a_plot():
    names = [f"m{i}" for i in range(40)]
    look = figures.styles(["plain, seed 0", "plain, seed 1", *names], [True, True, *[False] * 40])
    assert len(set(look.values())) == 42


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
    all_of, shown = sheets([one, other, one], 8, 10**9)
    assert shown == 64 and all_of.of == [0, 1, 0] and len(all_of.uris) == 2 and all_of.side == 32
    few, fewer = sheets([one, other, one], 8, sum(map(len, all_of.uris)) // 2)
    assert 8 <= fewer < 64 and sum(map(len, few.uris)) <= sum(map(len, all_of.uris)) // 2


def test_a_method_has_one_colour_wherever_it_stands():
    alone = figures.styles(["sjd"], [False], ["sjd"])
    among = figures.styles(["gsd", "sjd a", "sjd b"], [False] * 3, ["gsd", "sjd", "sjd"])
    assert alone["sjd"] == among["sjd a"] and among["sjd a"] != among["sjd b"] != among["gsd"]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_names_at_the_ends_of_lines_stand_apart_and_inside(wanted):
    places = spread(np.sort(np.array(wanted)), 6, 0, 100)
    assert (np.diff(places) >= 6 - 1e-9).all() and places.min() >= -1e-9 and places.max() <= 100 + 1e-9
    assert np.allclose(spread(np.array([10.0, 50.0]), 6, 0, 100), [10, 50])  # with room, each at its own end


def test_speed_and_quality_is_drawn_where_both_were_measured():
    rows = pd.DataFrame(
        {"label": ["plain", "sjd"], "role": ["reference", "method"], "model": "m", "method": "x", "key": "k"}
    )
    assert figures.speed_quality(rows) is None
    drawn = figures.speed_quality(
        rows.assign(fid=[10.0, 11.0], fid_se=0.5, speedup=[1.0, math.nan], step_compression=[1.0, 2.0])
    )
    assert drawn is not None and len(drawn[0].axes) == 2 and drawn[1]["fid_plain_band_low"].nunique() == 1
