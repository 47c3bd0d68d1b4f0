"""Tokens made elsewhere on a page: what their makers report is said to be so, and what is not known stands nowhere."""

import numpy as np
import pandas as pd
import pytest

from parity.base.files import read_json, write_json
from parity.decode.shard_io import read_shard, write_shard
from parity.experiment import paths
from parity.experiment.cells import cells
from parity.report.answers import name_fastest
from parity.report.collect import gather
from parity.report.front_table import IMAGE_COLUMNS
from parity.report.order import order_images
from parity.report.page import write_page
from parity.report.tables import show_speed, show_table
from tests.report import made
from tests.report.test_page import Page

ABOUT = {"reported_by": "by its authors on an A100", "runs_as": "reported by others", "batch": 4}
UNKNOWN = ("nfe", "nodes_per_pass", "nodes_per_token", "step_compression", "calls", "tpf", "seconds_per_image")


def write_made(root, p, **chosen):
    """Write an experiment with tokens made elsewhere, of which no passes are known; return its configuration. p: of the
    tests of these tokens, and of their repetition."""
    for name in ("tokens", "again"):
        np.savez(root / f"{name}.npz", tokens=np.zeros((12, 256), int))
    entry = {"name": "theirs", "tokens": str(root / "tokens.npz"), "command": "python sample.py", **chosen}
    image = made.SETTINGS["image"] | {"methods": {"ar": [{}], "sjd": [{}], "made": [entry]}, "study": []}
    settings = made.write_results(root, {"experiment": "made", "image": image}, {"made": p, "made again": p})
    for cell in (c for c in cells(settings, made.PROMPTS) if c.is_made):
        folder = root / paths.folder(cell)
        figures = {k: v for k, v in read_json(folder / "metrics.json").items() if not k.startswith(UNKNOWN)}
        figures |= {f"{name}_why": "not reported" for name in UNKNOWN}
        figures |= ABOUT | {"reported_seconds": 2.5, "reported_seconds_se": 0.1, "reported_speedup": 1.9}
        write_json(folder / "metrics.json", figures)
        records = pd.read_parquet(folder / "records.parquet")
        records.assign(nfe=np.nan).to_parquet(folder / "records.parquet")
        for file in paths.pieces(settings, cell, "shards"):
            shard = read_shard(root / file)
            known = {"lacks": ["passes", "step"], "made": {}, **shard.provenance}
            write_shard(root / file, shard.columns | {"nodes": np.full(len(shard.ids), np.nan)}, known)
    return settings


def find_row(g):
    return next(row for row in order_images(g.select_rows("discrete")) if row["method"] == "made")


def test_the_page_says_what_is_reported_and_what_was_not_tested(tmp_path, undrawn):
    settings = write_made(tmp_path, 0.5)
    g = gather(settings, [], root=tmp_path)
    row = find_row(g)
    assert (row["label"], row["pill"], row["claimant"]) == ("theirs", "consistent", "makers")
    assert "not tested: the decoder on models whose distribution is known" in row["scope"]
    assert row["own_options"] == "not tested"
    line = show_table([row], IMAGE_COLUMNS).rows[0]
    texts = [f"{entry.text} {entry.detail}" for entry in line]
    assert "1.90× as reported 2.50 s an image, in batches of 4, by its authors on an A100" in texts[-1]
    assert "not reported" in texts[2]
    assert (line[0].mark, line[0].detail) == ("made elsewhere", "its makers say lossless")
    assert "python sample.py" in line[0].hint
    write_page(g, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "1.90× as reported" in page
    shown = [c for view in Page(page).packed for c in view.get("columns", []) if isinstance(c, dict)]
    theirs = next(c for c in shown if c["label"] == "theirs")
    assert (theirs["unknown"], theirs["nodes"][0]) == (True, None)  # no replay of what is not known


@pytest.mark.parametrize(("again", "pill"), [(True, "lossy"), (False, "inconclusive")])
def test_a_rejection_counts_if_the_second_file_repeats_it(tmp_path, again, pill):
    settings = write_made(tmp_path, 1e-9, **({"again": str(tmp_path / "again.npz")} if again else {}))
    row = find_row(gather(settings, [], root=tmp_path))
    assert row["pill"].startswith(pill)
    assert ("give a file of another seed as again" in row["note"]) == (not again)
    assert bool(row["mismatch"]) == again


SPEED = {"speedup_how": "timed", "machine": "2 cores", "load": 0.1, "role": "method", "verdict_kind": "certified"}


def make_speed(label, value, over_captured=None):
    """Make a row of a measured speed with a narrow interval; over_captured: that over captured plain decoding."""
    row = SPEED | {"label": label, "speedup": value, "speedup_low": 0.99 * value, "speedup_high": 1.01 * value}
    if over_captured is not None:
        row |= {"speedup_over_captured": over_captured, "speedup_over_captured_low": 0.99 * over_captured}
        row |= {"speedup_over_captured_high": 1.01 * over_captured}
    return row


def test_both_speeds_are_shown_where_they_differ_and_the_fastest_is_so_over_the_fastest_plain_decoding():
    eager, captured = make_speed("eager", 3.0, 0.6), make_speed("captured", 2.0)
    assert show_speed("speedup")(captured).detail == "1.98 to 2.02"
    entry = show_speed("speedup")(eager)
    assert entry.text == "3.00×"
    assert "0.60× plain decoding with CUDA graphs" in entry.detail
    assert name_fastest([eager, captured], [eager, captured], "speedup").startswith("captured, 2.00 times")
