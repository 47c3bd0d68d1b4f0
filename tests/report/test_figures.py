"""Figures and images: what is drawn is what was measured, and every point of a study is where it belongs."""

import json

import numpy as np
import pandas as pd
import pytest

from parity.experiment.schema import FigureSpec
from parity.report import maps, study_figures
from parity.report.collect import RELATIVE
from parity.report.images import Column, make_sheets, order_worst_first

SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
KNOWN = {"step_compression": "tokens per pass", "clip_score": "CLIP-score", "fid": "FID", "recall": "recall"} | RELATIVE


def make_row(method, options, role="method", **measures):
    """Make a row of the summary of a method with options; `measures` are its figures."""
    fields = {"kind": "discrete", "model": "scenes", "method": method, "options": json.dumps(options), "role": role}
    return {**fields, "sampling": json.dumps(SAMPLING), "key": f"{method}-{options.get('window', role)}", **measures}


def make_summary():
    """Make a summary of plain decoding, its control, and sjd at windows 4, 16 and 64."""
    ends = {"step_compression_low": 0.9, "step_compression_high": 1.1}
    rows = [
        make_row("ar", {}, "reference", step_compression=1.0, fid=10.0, fid_se=0.5, clip_score=0.7),
        make_row("ar", {}, "control", step_compression=1.0, fid=11.0, fid_se=0.5, clip_score=0.7),
    ]
    for window, speed in ((16, 1.5), (4, 1.3), (64, 1.6)):
        measures = {"step_compression": speed, "fid": 10.0 + window / 16, "fid_se": 0.5, "clip_score": 0.7}
        rows.append(make_row("sjd", {"window": window, "init": "random", "refine": True}, **measures, **ends))
    return pd.DataFrame(rows)


def make_papers():
    """Make published numbers of sjd at windows 1 and 16 and of plain decoding, all but one of Table 9."""
    shared = {"kind": "discrete", "paper": "P", "table": "Table 9", "model": "M", "method": "sjd", "conditions": "{}"}
    one, sixteen = ({"options": json.dumps({"window": w})} for w in (1, 16))
    rows = [one | {"value": 0.31}, sixteen | {"value": 0.32}, sixteen | {"metric": "step_compression", "value": 2.2}]
    rows += [sixteen | {"value": 0.9, "table": "Table 8"}, {"method": "ar", "options": "{}", "value": 0.3}]
    return pd.DataFrame([shared | {"metric": "clip_score"} | row for row in rows])


def draw_data(**figure):
    """Draw a figure of a study with these fields, on `make_summary`, and return the table of its points."""
    spec = FigureSpec(**{"title": "t", "x": "window", "y": ["fid"], **figure})
    drawn = study_figures.draw_study(spec, make_summary(), make_papers(), KNOWN)
    assert drawn is not None
    return drawn[1]


def test_a_figure_holds_our_cells_and_its_tables_points():
    data = draw_data(y=["step_compression", "clip_score", "fid"], paper="P, Fig. 8, Table 9")
    mine, theirs = data[data["source"] == "ours"], data[data["source"] == "paper"]
    speed = mine[mine["measure"] == "step_compression"]
    # Plain decoding is drawn once and has no x.
    assert dict(zip(speed["x"], speed["value"], strict=True)) == {None: 1.0, 16: 1.5, 4: 1.3, 64: 1.6}
    assert sorted(theirs["value"]) == [0.3, 0.31, 0.32, 2.2]  # numbers of Table 8 are left out
    fid = mine[(mine["measure"] == "fid") & (mine["x"] == 16)].iloc[0]
    assert fid["high"] - fid["low"] == pytest.approx(2 * 1.96 * 0.5)
    assert set(theirs["series"]) == {"sjd, M, P", "ar, M, P"}
    assert set(mine["series"]) == {"sjd", "ar"}


def test_a_figure_over_a_measure_has_both_intervals():
    data = draw_data(x="step_compression")
    assert len(data) == 5
    assert (data["label"] == "ar").sum() == 2
    wide = data[data["label"] == "sjd"].iloc[0]
    assert (wide["across_low"], wide["across_high"]) == pytest.approx((0.9, 1.5))  # the low end comes first
    assert wide["note"] == "window=16"
    assert data[data["label"] == "ar"]["note"].tolist() == ["", ""]


def make_sweep(values, **options):
    """Make a summary of sjd at these windows, with further options, and of plain decoding."""
    rows = [make_row("sjd", {"window": w, **options}, fid=10.0, key=f"{w}") for w in values]
    return pd.DataFrame([*rows, make_row("ar", {}, "reference", fid=9.0)])


def test_a_setting_of_three_values_is_swept():
    windows = {"window": (["fid", "recall"], "P, Table 9")}
    ((figure, rows),) = study_figures.find_sweeps(make_sweep((4, 8, 16)), windows, set())
    assert (figure.x, figure.y, figure.paper) == ("window", ["fid"], "P, Table 9")  # no row has recall
    assert set(rows["method"]) == {"sjd"}
    assert not list(study_figures.find_sweeps(make_sweep((4, 8)), windows, set()))
    # What the study shows already gets no figure.
    assert not list(study_figures.find_sweeps(make_sweep((4, 8, 16)), windows, {"window"}))


def test_maps_leave_out_cells_of_one_token_a_pass():
    plain, quick = np.tile(np.arange(1, 17), (3, 1)), np.tile(np.repeat(np.arange(1, 9), 2), (3, 1))
    drawn = maps.draw_acceptance_maps({"plain": plain, "quick": quick}, {"plain": 4, "quick": 4})
    assert drawn is not None
    assert set(drawn[1]["label"]) == {"quick"}
    assert (drawn[1]["mean_run_length"] == 2).all()
    assert drawn[1][["row", "column"]].iloc[5].tolist() == [1, 1]
    assert maps.draw_acceptance_maps({"plain": plain}, {"plain": 4}) is None


def test_images_are_compared_within_a_model():
    """Cosines of a small model and of a large one lie apart; the difference that counts is within a model."""
    pixels, cosines = np.zeros((2, 8, 8, 3), dtype=np.uint8), ([0.9, 0.9], [0.9, 0.7], [0.2, 0.2], [0.1, 0.2])
    names = (("plain", True, "large"), ("sjd", False, "large"), ("plain", True, "small"), ("sjd", False, "small"))
    columns = [Column(n, pixels, np.array(c), b, m) for (n, b, m), c in zip(names, cosines, strict=True)]
    order, worst = order_worst_first(columns)
    assert order.tolist() == [1, 0]
    assert worst == pytest.approx([-0.2, -0.1])


def test_sheets_fill_their_room_and_hold_images_once():
    rng = np.random.default_rng(0)
    one, another = rng.integers(0, 255, (2, 64, 32, 32, 3), dtype=np.uint8)
    all_of, shown = make_sheets([one, another, one], 10**9)
    assert shown == 64
    assert all_of.sheet_of == [0, 1, 0]
    assert len(all_of.uris) == 2
    assert all_of.side == 32
    half, fewer = make_sheets([one, another, one], sum(map(len, all_of.uris)) // 2)
    assert 8 <= fewer < 64
    assert sum(map(len, half.uris)) <= sum(map(len, all_of.uris)) // 2
