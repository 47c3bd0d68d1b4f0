"""Targets of papers: all experiment files of a paper by one command, each a run of its own."""

import csv
import os
import subprocess
import sys

import pytest

from parity.base import machine
from tests.workflow.conftest import FEW
from tests.workflow.test_workflow import read_errors

TARGETS = {"sjd", "gsd", "vvs", "cspd", "assd", "papers"}


def test_targets_are_listed(snakemake):
    assert set(snakemake("--list-target-rules").stdout.split()) >= TARGETS


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--", "gsd"], "--configfile"),
        (["--config", "experiment=mine", "--", "gsd"], "--configfile"),
        (["--", "gsd", "text"], "text: not together with gsd"),
    ],
)
def test_what_its_runs_cannot_have_is_refused_in_one_line(snakemake, project, arguments, problem):
    (line,) = read_errors(snakemake(*arguments))
    assert problem in line
    assert not (project / "results/papers").exists()


@pytest.mark.long
def test_a_paper_is_made_by_one_command(project):
    """One file of it is wrong: it is named, the other is made, and so is the page. What was made is not made again."""
    folder = project / "workflow/experiments"
    for file in folder.glob("*.yaml"):
        file.unlink()
    (folder / "bad.yaml").write_text(f"# GSD, Table 1: wrong.{FEW.replace('few', 'bad')}unknown: 1\n")
    (folder / "few.yaml").write_text(f"# GSD, Figure 2: right.{FEW}")
    command = [sys.executable, "-m", "snakemake", "gsd", "--cores", "1", "--config", "scale=0.5"]

    def run():
        environment = {name: value for name, value in os.environ.items() if name != machine.COMMAND}
        return subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment)

    first = run()
    assert first.returncode != 0
    assert "error: unknown = 1" in first.stderr
    assert "error: bad failed (1); again: snakemake --cores 1 --config scale=0.5 --configfile" in first.stderr
    with (project / "results/papers/gsd.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1
    assert "The run of bad failed" in (project / "results/papers/gsd.html").read_text()
    report = project / "results/few-x0.5/report.html"
    assert "--configfile" in report.read_text(), "the page shows the command of its own run"
    made = report.stat().st_mtime_ns
    (folder / "bad.yaml").unlink()
    second = run()
    assert second.returncode == 0, second.stderr
    assert report.stat().st_mtime_ns == made
    assert "failed" not in (project / "results/papers/gsd.html").read_text()
