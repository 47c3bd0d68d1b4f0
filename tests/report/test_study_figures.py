"""Study figures: every point where it belongs, ours and the paper's, of every kind of model."""

import json

import pandas as pd
import pytest

from parity.base.errors import ParityError
from parity.experiment.schema import FigureSpec
from parity.report import figures, study_figures
from parity.report.collect import RELATIVE
from parity.report.figures import Extra

SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
KNOWN = {
    "step_compression": "tokens per pass",
    "clip_score": "CLIP-score",
    "fid": "FID",
    "recall": "recall",
    **RELATIVE,
}


def row(method, given, role="method", **measures):
    """A row of the summary."""
    place = {"kind": "discrete", "model": "scenes", "method": method, "options": json.dumps(given), "role": role}
    return {**place, "sampling": json.dumps(SAMPLING), "key": f"{method}-{given.get('window', role)}", **measures}


def summary():
    ends = {"step_compression_low": 0.9, "step_compression_high": 1.1}
    rows = [
        row("ar", {}, "reference", step_compression=1.0, fid=10.0, fid_se=0.5, clip_score=0.7),
        row("ar", {}, "control", step_compression=1.0, fid=11.0, fid_se=0.5, clip_score=0.7),
    ]
    for window, speed in ((16, 1.5), (4, 1.3), (64, 1.6)):
        taken = {"step_compression": speed, "fid": 10.0 + window / 16, "fid_se": 0.5, "clip_score": 0.7}
        rows.append(row("sjd", {"window": window, "init": "random", "refine": True}, **taken, **ends))
    return pd.DataFrame(rows)


def papers():
    shared = {"kind": "discrete", "paper": "P", "table": "Table 9", "model": "M", "method": "sjd", "conditions": "{}"}
    rows = [
        shared | {"options": json.dumps({"window": w}), "metric": "clip_score", "value": v}
        for w, v in ((1, 0.31), (16, 0.32))
    ]
    rows += [shared | {"options": json.dumps({"window": 16}), "metric": "step_compression", "value": 2.2}]
    rows += [shared | {"options": json.dumps({"window": 16}), "metric": "clip_score", "value": 0.9, "table": "Table 8"}]
    return pd.DataFrame([*rows, shared | {"method": "ar", "options": "{}", "metric": "clip_score", "value": 0.3}])


def study(rows=None, said=None, **figure):
    given = {"title": "t", "x": "window", "y": ["fid"], **figure}
    return study_figures.study(
        FigureSpec(**given), summary() if rows is None else rows, papers() if said is None else said, KNOWN
    )


def data_of(**given):
    drawn = study(**given)
    assert drawn is not None
    return drawn[1]


def test_a_figure_holds_our_cells_and_the_papers_points_of_its_tables_alone():
    data = data_of(y=["step_compression", "clip_score", "fid"], paper="P, Fig. 8, Table 9")
    mine, theirs = data[data["source"] == "ours"], data[data["source"] == "paper"]
    speed = mine[mine["measure"] == "step_compression"]
    assert dict(zip(speed["x"], speed["value"], strict=True)) == {None: 1.0, 16: 1.5, 4: 1.3, 64: 1.6}  # ar once, no x
    assert sorted(theirs["value"]) == [0.3, 0.31, 0.32, 2.2]  # not Table 8's
    fid = mine[(mine["measure"] == "fid") & (mine["x"] == 16)].iloc[0]
    assert fid["high"] - fid["low"] == pytest.approx(2 * 1.96 * 0.5)
    assert set(theirs["series"]) == {"sjd, M, P", "ar, M, P"} and set(mine["series"]) == {"sjd", "ar"}


def test_a_figure_over_a_measure_has_intervals_both_ways_and_the_control_too():
    data = data_of(x="step_compression")
    assert len(data) == 5 and (data["label"] == "ar").sum() == 2
    wide = data[data["label"] == "sjd"].iloc[0]
    assert (wide["across_low"], wide["across_high"]) == pytest.approx((0.9, 1.5))  # never on the wrong side
    assert wide["note"] == "window=16" and data[data["label"] == "ar"]["note"].tolist() == ["", ""]


def swept(values, **more):
    rows = [row("sjd", {"window": w, **more}, fid=10.0, key=f"{w}") for w in values]
    return pd.DataFrame([*rows, row("ar", {}, "reference", fid=9.0)])


def test_a_setting_is_swept_by_itself_where_one_method_takes_three_values():
    windows = {"window": (["fid", "recall"], "P, Table 9")}
    ((figure, rows),) = study_figures.automatic(swept((4, 8, 16)), windows, set())
    assert (figure.x, figure.y, figure.paper) == ("window", ["fid"], "P, Table 9")  # of recall there is nothing
    assert set(rows["method"]) == {"sjd"}
    assert not list(study_figures.automatic(swept((4, 8)), windows, set()))
    assert not list(study_figures.automatic(swept((4, 8, 16)), windows, {"window"}))  # the study shows it


EXTRAS = {
    "line": pd.DataFrame({"x": [1, 2, 3], "y": [0.9, 0.8, 0.7], "low": [0.8, 0.7, 0.6], "high": [1, 0.9, 0.8]}),
    "histogram": pd.DataFrame({"value": [0.1, 0.2, 0.2, 0.9], "label": ["a", "a", "b", "b"]}),
}


@pytest.mark.parametrize("kind", EXTRAS)
def test_figures_made_elsewhere_are_drawn_or_name_the_column_they_lack(kind):
    data = EXTRAS[kind]
    ax = figures.draw(Extra("e", "E", "", data, kind, x="across")).axes[0]
    assert ax.get_xlabel() == "across" and (ax.lines or ax.collections)
    needed = figures.NEEDS[kind][-1]
    with pytest.raises(ParityError, match=f"figure 'e': no column '{needed}'"):
        figures.draw(Extra("e", "E", "", data.drop(columns=needed), kind))
