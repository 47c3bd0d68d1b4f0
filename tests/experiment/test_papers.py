"""Heads of experiment files, and the runs of a paper's files one after another."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from parity.base import machine
from parity.experiment import checks, nested_runs, papers, pins

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


@pytest.mark.parametrize(
    "text, references",
    [
        ("Tables 1 to 3, Figure 8", ["Table 1", "Table 2", "Table 3", "Figure 8"]),
        ("Figures 1 and 10b", ["Figure 1", "Figure 10b"]),
        ("Appendix E.1", ["Appendix E.1"]),
        ("its half on MAR", []),
    ],
)
def test_a_head_names_tables_and_figures(text, references):
    assert papers.expand_references(text) == references


def test_files_of_a_paper_come_in_the_order_of_its_tables(tmp_path):
    heads = {"c": "SJD, Table 10: x", "b": "SJD, Table 2: x", "a": "Figure 1 of none", "d": "VVS, Table 1: x"}
    for name, head in heads.items():
        (tmp_path / f"{name}.yaml").write_text(f"# {head}. More.\nexperiment: {name}\n")
    (tmp_path / "e.yaml").write_text("# SJD, Figure 3: x.\nmodels: {m: {source: hub}}\n")
    assert [e.file.stem for e in papers.list_experiments(tmp_path, "sjd")] == ["e", "b", "c"], (
        "published networks first"
    )
    assert [e.file.stem for e in papers.list_experiments(tmp_path) if not e.paper] == ["a"]


def test_every_table_of_printed_numbers_has_a_file():
    """Except for those of no number, such as "Sec. 1"; a paper of PAPERS has a file of printed numbers."""
    for key, _ in papers.PAPERS.values():
        experiments = papers.list_experiments(ROOT / "workflow/experiments", key)
        named = {reference for e in experiments for reference in e.references}
        rows = (ROOT / f"workflow/published/{key}.csv").read_text().splitlines()
        assert {r for line in rows for r in papers.expand_references(line.split(",")[2]) if "Table" in r} <= named


FLAGS = ["--cores", "2", "--resources", "gpu=0", "--config", "scale=0.5", "stand_in=true"]


@pytest.mark.parametrize(
    "words, targets, rest",
    [
        (["sjd", *FLAGS], ["sjd"], FLAGS),
        ([*FLAGS, "--", "sjd", "vvs"], ["sjd", "vvs"], FLAGS),
        (["--cores", "2", "gsd", *FLAGS[2:]], ["gsd"], FLAGS),
        (["--directory", "sjd", "sjd", "--cores", "1"], ["sjd"], ["--directory", "sjd", "--cores", "1"]),
    ],
)
def test_targets_are_removed_and_flags_and_their_values_stay(words, targets, rest):
    assert nested_runs.remove_targets(words, targets) == rest


def test_files_run_in_turn_and_a_failure_stops_none(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(machine.COMMAND, "snakemake sjd")

    def make_command(words, snakefile, file, target):
        code = f"import os; open('ran', 'a').write({f'{target} {file.stem} '!r})"
        code += f"; assert {machine.COMMAND!r} not in os.environ"
        fails = (file.stem, target) in {("b", "all"), ("d", "fetch")}
        return [sys.executable, "-c", f"{code}; raise SystemExit({3 if fails else 0})"]

    monkeypatch.setattr(nested_runs, "make_command", make_command)
    files = [Path(f"{name}.yaml") for name in "abcd"]
    codes = nested_runs.run_files(files, ["--cores", "1"], "Snakefile", files[2:])
    assert codes == dict(zip(files, (0, 3, 0, 3), strict=True))
    assert (tmp_path / "ran").read_text() == "all a all b fetch c all c fetch d ", "without its data d is not run"
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert lines == [
        f"error: {name} failed (3); again: snakemake --cores 1 --configfile {name}.yaml" for name in ("b", "d")
    ]


@pytest.mark.parametrize("command_line", [{}, {"scale": "0.5"}, {"stand_in": True}, {"stand_in": "true", "scale": 0.5}])
def test_results_lie_where_the_run_puts_them(command_line, tmp_path, make_stand_in):
    config = {"experiment": "few", "text": {"methods": {"sequential": [{}]}}}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(config))
    raw = {**config, **{key: json.loads(str(value).lower()) for key, value in command_line.items()}}
    plan = checks.make_plan(raw, str, lambda name: pins.NONE, PUBLISHED, lambda names, published: {})
    assert nested_runs.find_results(tmp_path / "few.yaml", command_line) == Path("results", plan.config.experiment)
