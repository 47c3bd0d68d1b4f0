"""Published numbers beside ours: each beside the cells that it is of, and no others; and what the files of them say."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from parity.experiment.checks import make_config
from parity.experiment.options import KINDS, find_plain_method, methods, options
from parity.report import published, shared_sections
from parity.report.published import join_published, read_published

FILES = sorted((Path(__file__).parents[2] / "workflow/published").glob("*.csv"))
SIZES = {"scenes": {"vocab": 1024, "length": 256}}
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def image(method, variant, role="method", **figures):
    """Make a summary row of a method on images, its options `variant` completed; `figures` are its measures."""
    row = {"kind": "discrete", "model": "scenes", "method": method, "role": role, "sampling": json.dumps(SAMPLING)}
    key = role if role in ("reference", "control") else f"{method}{variant}"
    chosen = json.dumps(options("discrete", method, variant))
    return row | {"options": chosen, "key": key, "reference": "reference", **figures}


def images():
    """Make a summary of plain decoding, its control, and sjd at windows 4, 16 and 64."""
    plain = {"step_compression": 1.0, "clip_score": 0.7, "speedup": 1.0, "seconds_per_image": 2.0}
    rows = [image("ar", {}, role, **plain) for role in ("reference", "control")]
    rows += [image("sjd", {"window": w}, step_compression=1.5, clip_score=0.7, speedup=1.4) for w in (16, 4, 64)]
    return pd.DataFrame(rows)


def paper_row(method="sjd", options=None, metric="clip_score", value=0.32, kind="discrete", **changes):
    """Make a published number of sjd's paper; `changes` replace further columns."""
    fields = {"kind": kind, "paper": "P", "table": "Table 9", "model": "M", "conditions": "{}"}
    fields |= {"method": method, "options": json.dumps(options or {}), "metric": metric, "value": value}
    return fields | changes


def join_rows(*lines, rows=None):
    """Join published numbers with the summary `images`, or `rows`; the paper's model M is ours."""
    return join_published(pd.DataFrame(lines), images() if rows is None else rows, SIZES, (), {"scenes": "M"})


def test_a_number_is_joined_with_the_cell_of_its_options():
    table = join_rows(paper_row("ar", value=0.3), paper_row(options={"window": 16}), paper_row(options={"window": 1}))
    # Numbers are joined with the reference, not the control; window 1 has no cell.
    assert table["method"].tolist() == ["ar", "sjd"]
    clip = table.iloc[1]
    assert clip["key"] == "sjd{'window': 16}"
    assert clip["ours"] == 0.7
    assert clip[["change", "our_change", "difference"]].tolist() == pytest.approx([0.02, 0, -0.02])
    assert pd.isna(table.iloc[0]["our_change"])
    assert pd.isna(table.iloc[0]["difference"])


@pytest.mark.parametrize(("is_small", "found"), [(True, 1), (False, 0)])
def test_options_that_small_networks_capped_stand_for_the_printed_ones(is_small, found):
    """Only in a run of small random networks."""
    rows = images().assign(**{"stand_in": True} if is_small else {})
    sizes = {"scenes": {"vocab": 1024, "length": 64}}
    table = join_published(pd.DataFrame([paper_row(options={"window": 96})]), rows, sizes)
    assert table["our_options"].notna().sum() == found
    if found:
        assert json.loads(table.iloc[0]["our_options"])["window"] == 64


@pytest.mark.parametrize("is_small", [True, False])
def test_steps_of_small_networks_stand_for_the_nearest(is_small):
    """An image of 16 tokens in 4 steps stands for 64 tokens a step, if the network is a small random one."""
    rows = [
        {
            "kind": "continuous", "model": "mar", "method": "mar", "role": "method", "key": str(n), "batch": 2,
            "options": json.dumps({"iterations": n, "schedule": "constant"}), "sampling": "{}", "fid": 1.0 * n,
            "reference": "8", **({"stand_in": True} if is_small else {}),
        }
        for n in (8, 4)
    ]  # fmt: skip
    line = paper_row("mar", {"iterations": None, "schedule": "constant"}, "fid", kind="continuous")
    line["conditions"] = '{"model": "mar", "tokens_per_step": 64}'
    table = join_published(pd.DataFrame([line]), pd.DataFrame(rows), {"mar": {"length": 16}})
    assert table["ours"].dropna().tolist() == ([4.0] if is_small else [])


def test_networks_that_are_not_run_are_the_papers():
    """Of a table that has a number of ours: not of another table, nor of a network that is run with other options."""
    theirs = {"model": "N", "conditions": '{"model": "n"}'}
    lines = [paper_row(options={"window": 16}), paper_row(**theirs), paper_row(options={"window": 1})]
    table = join_rows(*lines, paper_row(table="Table 8", **theirs))
    assert table["model"].tolist() == ["M", "N"]
    assert table["key"].tolist() == ["sjd{'window': 16}", "the paper's"]
    assert pd.isna(table.iloc[1]["ours"])
    page = shared_sections.show_published(table, {}, "")
    assert page.rows[1][-1].text == "the paper's"
    assert join_rows(paper_row(**theirs)).empty


def test_no_difference_is_taken_between_networks():
    lines = [
        paper_row(options={"window": 16}),
        paper_row(metric="speedup", value=2.0, options={"window": 16}),
        paper_row("ar", value=0.3),
    ]
    for networks in ({}, {"scenes": "another"}, None):
        table = join_published(pd.DataFrame(lines), images(), SIZES, (), networks)
        assert table["ours"].notna().all()
        assert table["difference"].isna().all()
        assert "Difference" not in [heading for heading, _ in shared_sections.show_published(table, {}, "").columns]
    assert "Difference" in [heading for heading, _ in shared_sections.show_published(join_rows(*lines), {}, "").columns]


def test_figures_relative_to_another_baseline_are_not_joined():
    rows = images().assign(baseline="mar iterations=16")
    lines = paper_row(options={"window": 16}), paper_row(options={"window": 16}, metric="speedup", value=1.5)
    table = join_rows(*lines, paper_row("ar", value=0.3), rows=rows).set_index("metric")
    assert pd.isna(table.loc["speedup", "ours"])
    assert table.loc["clip_score", "our_change"].isna().all()
    assert table.loc["clip_score", "ours"].tolist() == [0.7, 0.7]


def test_unstated_options_are_defaults_and_null_is_anything():
    assert len(join_rows(paper_row())) == 1  # the cell of window 16, the default
    assert len(join_rows(paper_row(options={"window": [4, 64]}))) == 2
    assert len(join_rows(paper_row(options={"window": None}))) == 3
    assert join_rows(paper_row(options={"init": ["repeat_left"]})).empty


def vectors(key, variant, batch=8, **columns):
    """Make a summary row of `cspd` on vectors, with further options `variant`."""
    row = {"kind": "continuous", "model": "mar", "method": "cspd", "role": "method", "key": key, "batch": batch}
    sampling = json.dumps({"guidance": 3.0, "sampler": "ddpm"} | columns.pop("sampling", {}))
    chosen = json.dumps(options("continuous", "cspd", {"gamma": 4, "prefill": 0.05} | variant))
    return row | {"options": chosen, "sampling": sampling, "acceptance": 0.3, "speedup": 1.2, "fid": 9.0, **columns}


def test_the_most_similar_continuous_cell_is_joined():
    released = published.RELEASED
    paper = paper_row("cspd", kind="continuous", metric="acceptance")
    rows = [vectors("printed", {}), vectors("one", {"inner_temperature": 42.0})]
    rows += [vectors("prefilled", {**released, "prefill": 0.0})]
    rows += [vectors("small", released, batch=1), vectors("like", released)]
    conditions = {"conditions": json.dumps({"model": "mar", "batch": 8})}
    for n_rows, key in ((5, "like"), (4, "small"), (3, "prefilled"), (2, "one"), (1, "printed")):
        assert join_rows(paper | conditions, rows=pd.DataFrame(rows[:n_rows])).iloc[0]["key"] == key
    assert join_rows(paper | {"conditions": '{"model": "xar"}'}, rows=pd.DataFrame(rows)).empty


# --- the files of published numbers


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.name)
def test_published_rows_are_distinct_and_name_known_options(file):
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert rows and len({tuple(v for k, v in r.items() if k != "value") for r in rows}) == len(rows)
    for r in rows:
        assert np.isfinite(float(r["value"]))
        assert r["paper"]
        assert "," not in r["paper"]
        assert r["table"]
        assert r["kind"] in KINDS
        assert isinstance(json.loads(r["conditions"]), dict)
        if r["method"] in methods(r["kind"]):
            for key, value in json.loads(r["options"]).items():
                for one in value if isinstance(value, list) else [value] * (value is not None):
                    options(r["kind"], r["method"], {key: one})


def test_every_published_text_can_be_run():
    """Its task, conditions, method and options are accepted by the configuration."""
    papers = read_published(FILES).query("kind == 'anysubset'")
    for _, p in papers.drop_duplicates(["conditions", "method", "options"]).iterrows():
        conditions = json.loads(p["conditions"])
        task, cache = conditions.pop("task"), [conditions.pop("cache", True)]
        conditions.pop("model", None)
        chosen = {k: v for k, v in json.loads(p["options"]).items() if v is not None}
        variants = {find_plain_method("anysubset"): [{}]} | ({p["method"]: [chosen]} if p["method"] else {})
        make_config({"text": {"methods": variants, "cache": cache, "tasks": {task: [conditions]}}})
