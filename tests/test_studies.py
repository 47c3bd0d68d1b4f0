"""Figures that experiments end in: every point where it belongs, ours and the paper's; published numbers that mean what they say."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from parity.embedded import captions, scenes
from parity.experiment import config, study
from parity.experiment.config import FigureSpec
from parity.metrics.likelihood import likelihood, top_probabilities
from parity.report import figures
from parity.report import sweeps as studies
from parity.report.collect import cut, ours, read_published
from parity.report.page import to_compare
from parity.report.sweeps import Extra

ROOT = Path(__file__).parent.parent
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def row(method: str, options: dict, role: str = "method", top_k: int = 0, **measures) -> dict:
    """A row of summary.csv."""
    name = {
        "model": "scenes",
        "method": method,
        "options": json.dumps(options),
        "sampling": json.dumps(SAMPLING | {"top_k": top_k}),
    }
    return {**name, "role": role, "key": f"{method}-{len(options)}", **measures}


def summary() -> pd.DataFrame:
    low = {"step_compression_low": 0.9, "step_compression_high": 1.1}
    rows = [
        row("ar", {}, "reference", step_compression=1.0, fid=10.0, fid_se=0.5, clip_score=0.7, seconds_per_image=2.0),
        row("ar", {}, "control", step_compression=1.0, fid=11.0, fid_se=0.5, clip_score=0.7, seconds_per_image=2.0),
    ]
    for window, speed in ((16, 1.5), (4, 1.3), (64, 1.6)):
        measured = {
            "step_compression": speed,
            "fid": 10.0 + window / 16,
            "fid_se": 0.5,
            "clip_score": 0.7,
            "seconds_per_image": 1.0,
        }
        rows.append(
            row("sjd", {"window": window, "init": "random", "refine": True, "tolerance": 0.0}, **(measured | low))
        )
    return pd.DataFrame(rows)


def papers() -> pd.DataFrame:
    shared = {"paper": "P", "table": "Table 9", "model": "M", "method": "sjd", "conditions": "{}"}
    rows = [
        shared | {"options": json.dumps({"window": w}), "metric": "clip_score", "value": v}
        for w, v in ((1, 0.31), (16, 0.32))
    ]
    rows += [shared | {"options": json.dumps({"window": 16}), "metric": "step_compression", "value": 2.2}]
    rows += [shared | {"options": json.dumps({"window": 16}), "metric": "clip_score", "value": 0.9, "table": "Table 8"}]
    return pd.DataFrame([*rows, shared | {"method": "ar", "options": "{}", "metric": "clip_score", "value": 0.3}])


def test_a_figure_holds_our_cells_and_the_papers_points_of_its_tables_alone():
    figure = FigureSpec(title="t", x="window", y=["step_compression", "clip_score", "fid"], paper="P, Fig. 8, Table 9")
    drawn = studies.study(figure, summary(), papers())
    assert drawn is not None
    _, data, silent = drawn
    mine, theirs = data[data["source"] == "ours"], data[data["source"] == "paper"]
    speed = mine[mine["measure"] == "step_compression"]
    assert dict(zip(speed["x"], speed["value"], strict=True)) == {
        None: 1.0,
        16: 1.5,
        4: 1.3,
        64: 1.6,
    }  # ar once, without an x
    assert sorted(theirs["value"]) == [0.3, 0.31, 0.32, 2.2]  # not Table 8's
    assert silent == [study.MEASURES["fid"]]
    fid = mine[(mine["measure"] == "fid") & (mine["x"] == 16)].iloc[0]
    assert fid["high"] - fid["low"] == pytest.approx(2 * 1.96 * 0.5)
    assert set(theirs["series"]) == {"sjd, M, P", "ar, M, P"} and set(mine["series"]) == {"sjd", "ar"}


def test_what_the_paper_shares_no_scale_with_has_a_panel_of_its_own():
    figure = FigureSpec(title="t", x="window", y=["step_compression", "clip_score", "fid"], paper="P, Table 9")
    drawn = studies.study(figure, summary(), papers())
    alone = studies.study(figure, summary(), papers().iloc[:0])
    assert drawn is not None and alone is not None
    titles = [ax.get_title() for ax in drawn[0].axes]
    assert titles == [
        "measured here, and printed in the paper",
        "measured here",
        "printed in the paper",
        "measured here",
    ]
    assert [ax.get_title() for ax in alone[0].axes] == ["measured here"] * 3
    limits = drawn[0].axes[2].get_ylim()
    assert limits[1] < 0.5  # ours, at 0.7, do not stretch the paper's axis


def test_a_figure_over_a_measure_has_intervals_both_ways_and_the_control_too():
    figure = FigureSpec(title="t", x="step_compression", y=["fid"])
    data = studies.our_points(figure, summary())
    assert len(data) == 5 and (data["label"] == "ar").sum() == 2
    wide = data[data["label"] == "sjd"].iloc[0]
    assert (wide["across_low"], wide["across_high"]) == pytest.approx(
        (0.9, 1.5)
    )  # an interval never ends on the wrong side
    assert wide["note"] == "window=16" and data[data["label"] == "ar"]["note"].tolist() == ["", ""]


def test_a_figure_is_limited_by_where_and_keeps_methods_without_the_option():
    figure = FigureSpec(title="t", x="window", y=["fid"], where={"window": [4, 16]})
    assert sorted(studies.our_points(figure, summary())["x"].dropna()) == [4, 16]
    assert "ar" in set(studies.our_points(figure, summary())["label"])
    assert studies.study(FigureSpec(title="t", x="window", y=["recall"]), summary(), papers()) is None


def test_settings_stand_in_order_and_top_k_of_nought_is_all():
    by = FigureSpec(title="t", x="sampling.top_k", y=["fid"])
    assert studies.places(by, [100, 0, 1, 10, 1, None]) == [1, 10, 100, 0]
    assert studies.places(FigureSpec(title="t", x="delta", y=["fid"]), [0.5, 0, 0.1, "off", True]) == [
        0,
        0.1,
        0.5,
        "off",
        True,
    ]


EXTRAS = {
    "line": pd.DataFrame({"x": [1, 2, 3], "y": [0.9, 0.8, 0.7], "low": [0.8, 0.7, 0.6], "high": [1, 0.9, 0.8]}),
    "bars": pd.DataFrame({"x": ["a", "b", "a", "b"], "y": [1, 2, 3, 4], "label": ["s", "s", "t", "t"]}),
    "histogram": pd.DataFrame({"value": [0.1, 0.2, 0.2, 0.9]}),
    "heatmap": pd.DataFrame({"row": [0, 0, 1, 1], "column": [0, 1, 0, 1], "value": [1.0, 0.5, 0.5, 1.0]}),
}


@pytest.mark.parametrize("kind", EXTRAS)
def test_figures_made_elsewhere_are_drawn_or_name_the_column_they_lack(kind):
    data = EXTRAS[kind]
    assert studies.extra(Extra("e", "E", "", data, kind, x="x")).axes
    needed = studies.NEEDS[kind][-1]
    with pytest.raises(ValueError, match=f"figure 'e': no column '{needed}'"):
        studies.extra(Extra("e", "E", "", data.drop(columns=needed), kind))


def test_bars_stand_where_their_word_is():
    drawn = studies.extra(Extra("e", "E", "", EXTRAS["bars"], "bars"))
    heights = {round(p.get_x() + p.get_width() / 2): [] for p in drawn.axes[0].patches}
    for p in drawn.axes[0].patches:
        heights[round(p.get_x() + p.get_width() / 2)].append(p.get_height())
    assert heights == {0: [1, 3], 1: [2, 4]}


def test_top_1_is_the_largest_probability_of_each_place():
    p = torch.tensor([[[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]]], dtype=torch.float64)
    found = top_probabilities(p, torch.tensor([-1, -1, 0]))
    assert found[0, :2].tolist() == pytest.approx([0.8, 0.5]) and found[0, 2].isnan()


def test_top_1_maps_are_means_over_images_without_forced_places():
    first, second = np.full((2, 16), 0.5), np.full((3, 16), 0.25)
    first[:, 3], first[0, 0] = np.nan, 1.0
    _, data = figures.top1_maps({"ar": first, "sjd": second}, 4, np.zeros((2, 8, 8, 3), np.uint8), "ar")
    ar = data[data["label"] == "ar"].set_index(["row", "column"])["mean_top1"]
    assert ar[0, 0] == 0.75 and np.isnan(ar[0, 3]) and ar[3, 3] == 0.5
    assert (data[data["label"] == "sjd"]["mean_top1"] == 0.25).all()
    _, share = figures.top1_shares({"ar": first}, figures.styles(["ar"], ["ar"]))
    assert share["top1"].max() == 1 and share["top1"].median() == 0.5 and share["top1"].notna().all()


def test_published_numbers_stand_beside_the_cells_they_are_of_and_no_others():
    found = ours(summary(), papers(), {"scenes": 1024})
    at = found[found["method"] == "sjd"]
    assert set(at["our_options"].map(lambda o: json.loads(o)["window"])) == {
        16
    }  # no cell of window 1; 4 and 64 are in no table
    clip = at[(at["metric"] == "clip_score") & (at["table"] == "Table 9")].iloc[0]
    assert (
        clip["change"] == pytest.approx(0.02) and clip["our_change"] == 0 and clip["difference"] == pytest.approx(-0.02)
    )
    speed = at[at["metric"] == "step_compression"].iloc[0]
    assert speed["difference"] == pytest.approx(1.5 - 2.2) and pd.isna(speed["change"])
    assert len(found[found["method"] == "ar"]) == 1  # the reference, not the control


def test_what_a_paper_leaves_unsaid_is_the_default_and_a_list_is_any_of_it():
    said = papers().iloc[:1].assign(options="{}")
    assert len(ours(summary(), said, {"scenes": 1024})) == 1  # window 16, not 4 or 64
    either = said.assign(options=json.dumps({"window": [4, 64]}))
    assert len(ours(summary(), either, {"scenes": 1024})) == 2
    assert ours(summary(), said.assign(options=json.dumps({"init": ["repeat_left"]})), {"scenes": 1024}).empty


def test_top_k_beyond_the_codebook_is_no_top_k():
    assert cut(0, 1024) == cut(2000, 1024) == 1024 and cut(10, 1024) == 10
    said = papers().iloc[:1].assign(options="{}")
    for k, found in ((2000, 1), (10, 0)):
        assert (
            len(ours(summary(), said.assign(conditions=json.dumps({"sampling.top_k": k})), {"scenes": 1024})) == found
        )


def test_a_measure_we_do_not_take_is_left_open():
    found = ours(summary(), papers().iloc[:1].assign(options="{}", metric="hpsv2"), {"scenes": 1024})
    assert found["ours"].isna().all() and found["difference"].isna().all()


def test_a_study_shows_its_own_tables_first():
    found = ours(summary(), papers(), {"scenes": 1024})
    assert found[to_compare(found, [study.source("P, Fig. 8, Table 8")])]["value"].tolist() == [0.9]
    every = found[to_compare(found, [])]
    assert len(every) and every["difference"].notna().all() and "ar" not in set(every["method"])
    assert to_compare(pd.DataFrame(), []).empty


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda p: p.name)
def test_published_rows_name_options_that_exist_and_are_given_once(file):
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert rows and len({tuple(v for k, v in r.items() if k != "value") for r in rows}) == len(rows)
    for r in rows:
        assert np.isfinite(float(r["value"])) and r["paper"] and "," not in r["paper"] and r["table"]
        given = json.loads(r["options"])
        if r["method"] in config.methods():
            for key, value in given.items():
                for one in value if isinstance(value, list) else [value]:
                    config.options(r["method"], {key: one})


def test_numbers_of_the_papers_are_as_printed():
    """A few of each paper, typed from it a second time."""
    rows = read_published(PUBLISHED)
    typed = [
        ("Table 1", "sjd", {"init": "random"}, "step_compression", "Lumina-mGPT 7B", 2.22),
        ("Table 9", "sjd", {"window": 32}, "clip_score", "Lumina-mGPT 7B", 0.3155),
        ("Table 11", "ar", {}, "logp_sd_tokens", "Lumina-mGPT 7B", 2.3457),
        (
            "Table 1",
            "vvs",
            {"schedule": "uniform", "interval": 2, "delta": 0.1},
            "recall",
            "LlamaGen-XL stage 2",
            0.4588,
        ),
        ("Table 5", "vvs", {"schedule": "off", "s1": 2}, "fid", "LlamaGen-XL", 23.96),
    ]
    for table, method, options, metric, model, value in typed:
        at = rows[
            (rows["table"] == table)
            & (rows["method"] == method)
            & (rows["metric"] == metric)
            & (rows["model"] == model)
        ]
        assert at[at["options"].map(json.loads) == options]["value"].tolist() == [value], (table, metric)


@pytest.mark.parametrize("kind", captions.KINDS)
def test_prompt_sets_are_held_out_distinct_and_of_their_kind(kind):
    """`python -m parity.embedded.captions` makes the files; its first lines are made again here."""
    lines = (ROOT / f"prompts/{kind}.txt").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 100
    assert all(scenes.held_out(x) and captions.KINDS[kind](scenes.parse(x)) for x in lines)
    other = next(k for k in captions.KINDS if k != kind)
    assert not any(captions.KINDS[other](scenes.parse(x)) for x in lines)
    assert captions.captions(kind, 4) == lines[:4]


def test_the_spread_of_all_tokens_and_its_error():
    rng = np.random.default_rng(0)
    logp = rng.normal(-3, 1, (40, 64)) + rng.normal(
        0, 2, (40, 1)
    )  # images that differ: wider over all tokens than within an image
    logp[:, 5] = np.nan
    found = likelihood(logp, np.arange(40))
    assert (
        found["logp_sd_tokens"] == pytest.approx(np.nanstd(logp)) and found["logp_sd"] < 1.1 < found["logp_sd_tokens"]
    )
    again = [np.nanstd(rng.normal(-3, 1, (40, 64)) + rng.normal(0, 2, (40, 1))) for _ in range(400)]
    assert found["logp_sd_tokens_se"] == pytest.approx(np.std(again), rel=0.35)
