"""Study figures: every point where it belongs, ours and the paper's, of every kind of model."""

import json

import pandas as pd
import pytest

from parity.base.errors import ParityError
from parity.experiment.schema import FigureSpec
from parity.report import figures, shared_sections, study_figures
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


def test_what_the_paper_shares_no_scale_with_has_a_panel_of_its_own():
    measures = ["step_compression", "clip_score", "fid"]
    drawn, alone = study(y=measures, paper="P, Table 9"), study(y=measures, paper="P, Table 9", said=papers()[:0])
    assert drawn is not None and alone is not None
    titles = [ax.get_title() for ax in drawn[0].axes]
    assert titles == [
        "measured here, and printed in the paper",
        "measured here",
        "printed in the paper",
        "measured here",
    ]
    assert [ax.get_title() for ax in alone[0].axes] == ["measured here"] * 3
    assert drawn[0].axes[2].get_ylim()[1] < 0.5  # ours, at 0.7, do not stretch the paper's axis


def test_a_figure_over_a_measure_has_intervals_both_ways_and_the_control_too():
    data = data_of(x="step_compression")
    assert len(data) == 5 and (data["label"] == "ar").sum() == 2
    wide = data[data["label"] == "sjd"].iloc[0]
    assert (wide["across_low"], wide["across_high"]) == pytest.approx((0.9, 1.5))  # never on the wrong side
    assert wide["note"] == "window=16" and data[data["label"] == "ar"]["note"].tolist() == ["", ""]


def test_settings_stand_in_order_and_a_nought_that_stands_for_all_is_last():
    by = FigureSpec(title="t", x="sampling.top_k", y=["fid"])
    assert study_figures.places(by, [100, 0, 1, 10, 1, None]) == [1, 10, 100, 0]
    mixed = FigureSpec(title="t", x="delta", y=["fid"])
    assert study_figures.places(mixed, [0.5, 0, 0.1, "off", True]) == [0, 0.1, 0.5, "off", True]
    drawn = study(
        x="iterations", rows=summary().assign(options=[json.dumps({"iterations": i}) for i in (0, 0, 0, 4, 16)])
    )
    assert drawn is not None
    assert [t.get_text() for t in drawn[0].axes[0].get_xticklabels()] == ["4", "16", "each"]


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


def test_a_sweep_has_a_line_for_each_combination_of_the_settings_that_tell_its_cells_apart():
    rows = pd.concat([swept((4, 8, 16), init=i, refine=i == "copy") for i in ("random", "copy")])
    rows = rows.drop_duplicates(["method", "options"])
    ((figure, own),) = study_figures.automatic(rows, {"window": (["fid"], "")}, set())
    assert figure.by == ["method", "init"]  # refine says no more
    drawn = study_figures.study(figure, own, papers()[:0], KNOWN)
    assert drawn is not None and {"sjd init=random", "sjd init=copy"} == set(drawn[1]["label"])


@pytest.mark.parametrize(("kind", "name"), [("anysubset", "k"), ("continuous", "sampling.guidance")])
def test_sweeps_of_every_kind_are_drawn_from_its_cells(gathered, kind, name):
    """k takes three values in the made-up experiment, guidance one."""
    from importlib import import_module

    given = import_module(f"parity.report.{kind}").SWEPT
    plots = shared_sections.sweep_plots(gathered, kind, {name: given[name]})
    if name == "sampling.guidance":
        assert not plots
    else:
        assert plots[0].data["x"].nunique() == 3 and plots[0].uri.startswith("data:image/svg+xml")


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
