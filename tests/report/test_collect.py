"""What is gathered of an experiment: a summary row per cell, verdicts, comparisons with the reference."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.base.files import read_json, write_json
from parity.experiment import paths
from parity.experiment.cells import list_runs
from parity.metrics.estimates import Estimate
from parity.report import answers, summary_page
from parity.report import tables as form
from parity.report.__main__ import add_missing_figures
from parity.report.collect import (
    complete_speeds,
    compute_changes,
    compute_critical_z,
    gather,
    list_moved,
)
from parity.report.order import rank_row
from parity.report.settings import make_labels
from tests.report import made

TEXT = {
    "methods": {"sequential": [{}], "assd": [{"k": 3}]},
    "tasks": {"infilling": [{"rows": 4, "length": 24}, {"rows": 4, "length": 32}]},
}


def select_method(gathered, kind, method, role="method"):
    rows = gathered.select_rows(kind)
    return rows[(rows["method"] == method) & (rows["role"] == role)]


def test_each_cell_has_a_row_and_is_compared_with_its_own_reference(gathered):
    assert sorted(gathered.summary["key"]) == sorted(c.key for c in gathered.files.cells if not c.is_repetition)
    summary = gathered.summary.set_index("key")
    for _, row in summary.iterrows():
        base = summary.loc[row["reference"]]
        assert base["role"] == "reference"
        assert all(str(base[c]) == str(row[c]) for c in ("kind", "model", "sampling", "settings", "cache"))
    sjd = select_method(gathered, "discrete", "sjd").iloc[0]
    assert sjd["nfe_ratio"] == pytest.approx(sjd["nfe"] / summary.loc[sjd["reference"], "nfe"])
    texts = gathered.select_rows("anysubset")  # all cells but the references have a t-test against them
    assert ((texts["role"] != "reference") == texts["p_perplexity_welch"].notna()).all()


def test_first_images_of_a_cell_are_read_without_the_others(gathered):
    cell = next(c for c in gathered.files.cells if c.kind == "discrete")
    pixels = gathered.files.read_pixels(cell, 100)
    for first in (2, 6, 8, 12, 20):  # two files of six
        some = gathered.files.read_pixels(cell, first)
        assert np.array_equal(some, pixels[:first])
        assert some.base is None  # a view would keep the images of the whole file


def test_vectors_are_judged_on_mixtures_and_on_the_model(gathered):
    verdicts = gathered.verdicts[gathered.verdicts["kind"] == "continuous"].set_index("label")
    assert verdicts.loc["cspd gamma=4, on mixtures", "value"].kind == "certified"
    on_model = [label for label in verdicts.index if label.startswith("cspd") and "mixtures" not in label]
    assert on_model and (verdicts.loc[on_model, "tv_bound"].isna()).all()
    ratio = select_method(gathered, "continuous", "cspd").iloc[0]
    assert ratio[["two_paths_ratio", "single_path_ratio"]].tolist() == pytest.approx([np.exp(-1.0), np.exp(-50.0)])


def test_figures_of_sets_of_images_are_means_over_runs(tmp_path):
    """With their standard deviation; a figure that a run lacks, and one of single images, stay the first run's."""
    section = {"images": 9, "repeats": 3, "batch": [9], "methods": {"mar": [{}], "cspd": [{"gamma": 4}]}}
    settings = made.write_results(tmp_path, {"experiment": "runs", "continuous": section})
    rows = gather(settings, [], root=tmp_path)
    files = rows.files
    runs = {c.key: [c, *list_runs(settings, c)] for c in files.cells if not c.is_repetition}
    assert sorted(len(cells) for cells in runs.values()) == [1, 3, 3]  # the control has a single run
    drawn = {key: 20.0 + np.arange(len(cells)) ** 2 for key, cells in runs.items()}
    for key, cells in runs.items():
        for cell, fid in zip(cells, drawn[key], strict=True):
            file = tmp_path / paths.folder(cell) / "metrics.json"
            changed = {"fid": fid, "right": 0.5 + fid / 100} | ({"is": None} if cell is not cells[0] else {})
            write_json(file, read_json(file) | changed)
    summary = gather(settings, [], root=tmp_path).summary.set_index("key")
    assert sorted(summary.index) == sorted(runs)
    for key, row in summary.iterrows():
        assert row["fid"] == pytest.approx(drawn[key].mean())
        assert row["right"] == pytest.approx(0.7)
        assert row["is"] == 3.0 and pd.isna(row.get("is_runs_sd"))
        if row["role"] == "control":
            assert pd.isna(row["runs"])
            continue
        assert row["runs"] == 3
        assert row["fid_runs_sd"] == pytest.approx(drawn[key].std(ddof=1))
        assert row["fid_se"] == pytest.approx(row["fid_runs_sd"] / 3**0.5)
        shown = form.show_measured("fid")(row.to_dict())
        assert (shown.text, shown.detail) == ("21.7", f"±{form.SPACE}2.1 (sd of 3 runs)")


def test_the_fault_of_a_model_outweighs_what_mixtures_certify(tmp_path):
    settings = made.write_results(tmp_path)
    g = gather(settings, [], only=["continuous"], root=tmp_path)
    pairs = g.map_cells("continuous").items()
    label, cell = next((n, c) for n, c in pairs if c.spec["method"] == "cspd" and c.spec["batch"] == 9)
    rows = made.make_rows(cell, "one_token", 1e-9)
    rows += [r | {"repeat": 1} for r in rows]
    write_json(tmp_path / paths.layers(cell), {"layers": {"one_token": {"rows": rows}}})
    row = gather(settings, [], only=["continuous"], root=tmp_path).summary.set_index("label").loc[label]
    assert row["value"].kind == "lossy"
    assert row["mismatch"]


def gather_text(tmp_path, repeat, p):
    """Write and gather an experiment on texts, with p-values `p` by method; the exact and long layers have no rows."""
    settings = made.write_results(tmp_path, {"text": TEXT, "repeat": repeat}, p)
    for file in tmp_path.glob("results/equality/anysubset/*.json"):
        write_json(file, {"exact": {"rows": []}, "long": {"rows": []}})  # so that the layer on samples decides alone
    return gather(settings, [], root=tmp_path)


def test_a_rejection_on_samples_is_repeated_on_a_fresh_seed(tmp_path):
    for number, (repeat, p, kind, note) in enumerate((
        (False, {"assd": 1e-6}, "inconclusive", "repeat: true"),
        (True, {"assd": 1e-6, "assd again": 0.5}, "inconclusive", "not on the fresh seed"),
        (True, {"assd": 1e-6}, "lossy", "rejected by teacher-forced"),
        (True, {}, "consistent", "not rejected"),
    )):  # fmt: skip
        (root := tmp_path / str(number)).mkdir()
        g = gather_text(root, repeat, p)
        row = select_method(g, "anysubset", "assd").iloc[0]
        assert row["value"].kind == kind
        assert note in row["note"]
        tests = g.equality[(g.equality["method"] == "assd")]
        assert set(tests["repeat"]) == ({0, 1} if repeat else {0})
        assert set(tests.loc[tests["repeat"] == 1, "seed"]) <= {g.settings.seeds.again}
        assert set(g.select_rows("anysubset")["role"]) == {"reference", "control", "method"}


def make_rows(*options, **columns):
    """Make a summary row of sjd for each string of options; `columns` are lists of further values, one a row."""
    shared = {"kind": "discrete", "model": "m", "method": "sjd", "seed": 2}
    extra = [{k: v[i] for k, v in columns.items()} for i in range(len(options))]
    return [{**shared, "options": o, **extra[i], "key": str(i)} for i, o in enumerate(options)]


def test_labels_hold_what_differs_and_nothing_else():
    assert make_labels(make_rows('{"window": 4}', '{"window": 8}')) == ["sjd window=4", "sjd window=8"]
    assert make_labels(make_rows('{"window": 16}', '{"window": 8}')) == ["sjd", "sjd window=8"]  # 16 is the default
    assert make_labels(make_rows('{"window": 4}', '{"window": 4}', model=["a", "b"])) == ["a: sjd", "b: sjd"]
    assert make_labels(make_rows("{}", "{}", sampling=['{"top_k": 1}', '{"top_k": 2}'])) == [
        "sjd, top_k 1",
        "sjd, top_k 2",
    ]
    assert make_labels(make_rows("{}", "{}", seed=[0, 1])) == ["sjd, seed 0", "sjd, seed 1"]
    twice = make_rows('{"window": 4}', '{"window": 8}', '{"window": 8}', seed=[0, 0, 1])
    assert make_labels(twice) == ["sjd window=4", "sjd window=8, seed 0", "sjd window=8, seed 1"]


def test_rows_are_ordered_by_role_verdict_and_gain(gathered):
    for kind in gathered.kinds:
        ranks = [rank_row(row) for row in gathered.select_rows(kind).to_dict("records")]
        assert ranks == sorted(ranks)
        assert ranks[0] < ranks[-1]
    gains = gathered.select_rows("discrete").set_index("label")["gain"]
    assert gains["gsd"] == pytest.approx(1 / gathered.summary.set_index("label").loc["gsd", "nfe_ratio"])


def test_changes_are_paired_by_prompt_where_possible():
    ids, noise = [str(i) for i in range(12)], np.linspace(-1, 1, 12)
    records, base = (pd.DataFrame({"id": ids, "clip": noise + shift}) for shift in (-0.2, 0.0))
    row, reference = ({"perplexity": v, "perplexity_se": 0.3, "clip_score": v} for v in (9.0, 4.0))
    changes = compute_changes(row, reference, records, base)
    assert changes["clip_score_change"][:2] == pytest.approx((-0.2, 0.0))  # differences are taken prompt by prompt
    assert changes["perplexity_change"][:2] == pytest.approx((5.0, 0.3 * 2**0.5))
    assert set(changes) == {"clip_score_change", "perplexity_change"}


def test_a_figure_that_no_row_has_is_an_empty_column_beside_its_reason():
    rows = [{"key": "a", "fid_why": "x", "kid_why": "y"}, {"key": "b", "fid_why": "x", "kid": 0.5}]
    frame = add_missing_figures(pd.DataFrame(rows))
    assert list(frame) == ["key", "fid", "fid_why", "kid_why", "kid"]
    assert frame["fid"].isna().all()
    assert frame["kid"].tolist()[1] == 0.5


def test_a_change_counts_if_beyond_chance_among_all():
    row = {
        "role": "method",
        "fid_change": 2.5,
        "fid_change_se": 1.0,
        "perplexity_change": -9.0,
        "perplexity_change_se": 1,
    }
    assert compute_critical_z([row], 0.1) == pytest.approx(1.96, abs=0.01)
    assert list_moved(row, compute_critical_z([row], 0.1)) == ["fid", "perplexity"]
    assert list_moved(row, compute_critical_z([row] * 50, 0.05)) == ["perplexity"]


@given(st.floats(min_value=0, max_value=1))
def test_a_p_value_never_reads_as_nought(p):
    assert float(form.format_p_value(p).lstrip("< ")) > 0


@given(st.floats(min_value=-1e12, max_value=1e12), st.floats(min_value=1e-9, max_value=1e6))
def test_a_figure_is_never_rounded_by_more_than_its_error(value, error):
    shown = float(form.show_estimate(Estimate(value, error)).text.replace(",", ""))
    assert abs(shown - value) <= 0.06 * error + 1e-8 + abs(value) * 1e-15


@given(st.floats(min_value=1e-6, max_value=0.999))
def test_a_bound_still_holds_as_shown(value):
    shown = float(form.show_bound(value).text)
    assert value * (1 - 1e-5) <= shown <= 1.1 * value + 1e-7


def test_a_lower_level_of_tests_changes_verdicts_and_the_page(tmp_path, undrawn):
    """A p-value that rejects at .05, after all corrections, and not at .01, where the interval still excludes zero."""
    kinds, pages = {}, {}
    for alpha in (0.05, 0.01):
        root = tmp_path / str(alpha)
        root.mkdir()
        raw = {"experiment": "made", "image": made.SETTINGS["image"], "equality": {"alpha": alpha}}
        g = gather(made.write_results(root, raw, {"gsd": 8e-4}), [], root=root)
        kinds[alpha] = g.summary.set_index("label").loc["gsd", "verdict_kind"]
        pages[alpha] = dict(answers.answer_questions(g, "discrete", summary_page.order_methods(g, "discrete")))
    assert kinds == {0.05: "lossy", 0.01: "inconclusive"}
    assert "95 % confidence" in pages[0.05]["How sure of the distribution"]
    assert "99 % confidence" in pages[0.01]["How sure of the distribution"]
    assert "a fault must be larger to be found" in pages[0.01]["Level of the tests"]
    assert "Level of the tests" not in pages[0.05]


@pytest.mark.parametrize(("batch", "speed"), [(1, 1.5), (8, None)])
def test_at_batch_1_the_speed_of_a_batch_is_that_of_one_alone(batch, speed):
    """Papers print "speedup" of one image at a time."""
    found = {"speedup_single": 1.5, "speedup_single_low": 1.2, "speedup_single_how": "timed", "load": 1.0}
    row = complete_speeds(found, batch)
    assert row.get("speedup") == speed and row["speedup_single"] == 1.5
    assert (row.get("speedup_how") == "timed") == (batch == 1)
    shown = form.show_speed("speedup")({"batch": batch, "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6})
    assert (shown == form.ABSENT) == (batch == 1)
