"""The files behind a page, and the command that makes a row again."""

import shlex

from parity.experiment import paths
from parity.report.blocks import Section, Table, Terms, Words
from parity.report.collect import Gathered
from parity.report.format import Entry
from parity.report.tables import Column, show

TABLES = ("summary.csv", "equality.csv", "self_tests.csv", "published.csv", "records.parquet")  # beside the page
WHAT = {
    "index.html": "the verdicts, and the way to the rest",
    "report.html": "the whole page in one file",
    "summary.csv": "a row per cell",
    "equality.csv": "a row per test of a method",
    "self_tests.csv": "a row per test of the tests",
    "published.csv": "the papers' figures beside ours",
    "records.parquet": "a row per image or text",
}
KEEP = ("--configfile", "--configfiles", "--config", "-C")  # what decides which cells an experiment has


def command(typed: str, target: str) -> str:
    """The command that makes a file, under the configuration of the one that was typed."""
    words, kept, on = shlex.split(typed), [], False
    for word in words:
        name = word.partition("=")[0]
        on = name in KEEP or (on and not word.startswith("-"))
        kept += [word] if on else []
    return shlex.join(["uv", "run", "snakemake", "--cores", "all", *kept, "--", target])


def section(g: Gathered) -> Section:
    """Links to every table, and the folder of every cell: by name, for a link breaks when the page is copied."""
    typed = g.environment.get("run", {}).get("command", "")
    cells = {c.key: c for c in g.files.cells}
    rows = []
    for key, label, method in zip(g.summary["key"], g.summary["label"], g.summary["method"], strict=True):
        folder = paths.folder(cells[key])
        again = command(typed, f"{folder}/metrics.json")
        rows.append({"label": label, "method": method, "folder": folder, "again": again})
    columns = [
        Column("Method", lambda r: Entry(r["label"], style="name")),
        Column("Cell", lambda r: Entry(r["folder"], style="file")),
        Column("Command that makes the row again", lambda r: Entry(r["again"], style="code")),
    ]
    table: Table = show(rows, columns, CELLS)
    return Section("files", "Files and commands", Terms(list(WHAT.items())), Words("Cells", "heading"), table)


CELLS = (
    "Samples, records and figures of each row, and the command that makes them from the project's folder. What is there"
    " and up to date is not made twice: delete the cell's folder first to have it made again."
)
