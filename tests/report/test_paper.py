"""The page of a paper: its tables in order, each printed number beside ours, or why there is none."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from parity.experiment.options import options
from parity.report import paper

ROOT = Path(__file__).parents[2]
HEAD = "# GSD, Table 1, Figure 2: x.\nexperiment: few\ntiming: {methods: all}\n"
STUDY = "study: [{title: By group, x: group, y: [step_compression], paper: 'P, Table 1'}]"
FEW = f"{HEAD}image: {{methods: {{ar: [{{}}], gsd: [{{}}, {{group: 4}}]}}, {STUDY}}}\n"
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def printed(table="Table 1", chosen=None, metric="step_compression", value=2.31):
    """Make a line of printed numbers of gsd."""
    line = {"kind": "discrete", "paper": "P", "table": table, "model": "M", "method": "gsd"}
    return line | {"options": json.dumps(chosen or {}), "conditions": "{}", "metric": metric, "value": value}


def ours(chosen, key, **figures):
    """Make a summary row of gsd."""
    row = {"kind": "discrete", "model": "scenes", "method": "gsd", "key": key, "role": "method"}
    return row | {
        "options": json.dumps(options("discrete", "gsd", chosen)),
        "sampling": json.dumps(SAMPLING),
        **figures,
    }


@pytest.fixture
def write(tmp_path):
    """A function that writes the page of a paper of one experiment, and returns its text and its table."""

    def run(lines, joined, rows, failed=()):
        folder, results = tmp_path / "workflow/published", tmp_path / "results/few"
        for made in (folder, results, tmp_path / "workflow/experiments"):
            made.mkdir(parents=True, exist_ok=True)
        (tmp_path / "prompts").symlink_to(ROOT / "prompts")
        (tmp_path / "workflow/experiments/few.yaml").write_text(FEW)
        pd.DataFrame(lines).to_csv(folder / "gsd.csv", index=False)
        (folder / "networks.yaml").write_text("{}")
        if rows:
            pd.DataFrame(rows).to_csv(results / "summary.csv", index=False)
            pd.DataFrame(joined).to_csv(results / "published.csv", index=False)
            (results / "report.html").touch()
        page = tmp_path / "results/papers/gsd.html"
        files = {tmp_path / "workflow/experiments/few.yaml": results}
        paper.write_paper("gsd", folder, files, failed, page)
        return page.read_text(), pd.read_csv(page.with_name("gsd.csv"), keep_default_na=False)

    return run


def test_numbers_stand_beside_ours_in_the_order_of_the_tables(write):
    lines = [printed("Table 10", value=3.0), printed(), printed(chosen={"group": 4}), printed(chosen={"group": 9})]
    joined = [
        {**line, "ours": value, "key": key} for line, value, key in zip(lines, (1.5, 1.5, 2, 0), "aab", strict=False)
    ]
    rows = [ours({}, "a", step_compression=1.5), ours({"group": 4}, "b", step_compression=2.0)]
    text, table = write(lines, joined, rows)
    assert table["ours"].tolist() == ["1.5", "1.5", "2.0", ""]
    assert "2.31 | 1.500" in text
    assert "2.31 | –" in text
    assert "no cell of this method and these options" in text
    assert text.index('<section id="table-1">') < text.index('<section id="table-10">')
    assert 'href="../few/report.html"' in text
    assert "few-by-group" in text, "the study's figure"


@pytest.mark.parametrize(("batch", "shown"), [(1, "1.3 | 1.40"), (8, "1.3 | 1.50")])
def test_at_batch_1_the_speed_is_that_of_one_row_alone(write, batch, shown):
    line = printed(metric="speedup", value=1.3)
    speeds = {"speedup_single_predicted": 1.4, "speedup_single": 1.4, "speedup_single_how": "predicted"}
    speeds |= {"speedup_predicted": 1.5, "speedup": 1.5 if batch > 1 else 1.4, "speedup_how": "predicted"}
    text, _ = write([line], [{**line, "ours": speeds["speedup"], "key": "a"}], [ours({}, "a", batch=batch, **speeds)])
    assert shown in text


def test_a_figure_that_is_missing_says_why(write):
    line = printed(metric="fid")
    rows = [ours({}, "a", fid_why="no network: networks.inception")]
    text, table = write([line], [{**line, "ours": None, "key": "a"}], rows)
    assert table["reason"].tolist() == ["no network: networks.inception"]
    assert "no network: networks.inception" in text


def test_without_a_run_all_are_not_run_and_a_failure_is_named(write):
    text, table = write([printed()], [], [], failed=["few"])
    assert table["reason"].tolist() == ["not run"]
    assert "The run of few failed" in text
    assert not re.search(r'href="\.\./few', text), "no link to what is not there"
