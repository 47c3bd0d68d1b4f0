"""A table of a paper on stand-ins, from published files to the page, by README's command."""

import csv

import pytest

from tests.workflow.conftest import runner

LESS = ("image={methods: {jacobi: null, sjd: [{window: 16}]}}", "models={lumina: null}")  # the rest takes as long again
FEW = "equality={n: 10000, long: 0, mutants: 1000, calibration: 100, swaps: 99}"


@pytest.mark.slow
def test_a_table_runs_on_stand_ins_to_a_page_that_says_so(project):
    done = runner(project)("--config", "stand_in=true", *LESS, FEW, config="workflow/experiments/sjd-table1.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = project / "results/sjd-table1-stand_in"
    page = (folder / "report.html").read_text()
    assert 'class="stand-in"' in page and "No figure here says anything of the models" in page
    rows = list(csv.DictReader((folder / "summary.csv").open()))
    assert {row["method"] for row in rows} == {"ar", "sjd"} and {row["stand_in"] for row in rows} == {"True"}
    for row in rows:
        assert 0 < float(row["nfe_ratio"]) <= 1.05 and row["model"] == "anole"
        assert -1 <= float(row["clip_score"]) <= 1, "judged by the stand-in of its CLIP"
