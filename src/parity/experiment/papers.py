"""The five papers: their names, and which experiment file makes which of their tables and figures.

A file says so in the first sentence of the comment at its head: "SJD, Tables 1 to 2, Figure 8: ...". Its entry is the
name of one of PAPERS, whose printed numbers are in workflow/published/<key>.csv."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

PAPERS = {  # by the name that heads of experiment files give: its key, and its title
    "SJD": ("sjd", "Speculative Jacobi decoding (SJD), arXiv:2410.01699"),
    "GSD": ("gsd", "Grouped speculative decoding (GSD), arXiv:2508.07747"),
    "VVS": ("vvs", "VVS, arXiv:2511.13587"),
    "CSpD": ("cspd", "Continuous speculative decoding (CSpD), arXiv:2411.11925"),
    "ASSD": ("assd", "Any-subset speculative decoding (ASSD), arXiv:2504.20456"),
}
HOW_TO_RUN = re.compile(r"Run `|About \d|On the paper's own")  # begins the lines of a head that say how to run it
WORDS = re.compile(r"(Table|Figure|Algorithm|Appendix)s?|(\d+) to (\d+)|\b(?:\d+[a-z]?|[A-Z](?:\.\d+)?)\b")


class Experiment(NamedTuple):
    """An experiment file, as its head describes it."""

    file: Path
    paper: str  # its key; "" for a file of no paper
    references: list[str]  # tables and figures that it makes: "Table 1", "Figure 8"
    is_published: bool  # whether it runs networks of the paper; else embedded ones
    summary: str  # the first sentence of the head


def read_head(file: Path) -> str:
    """Return the comment at the head of an experiment file, up to the lines on how to run it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = [line[2:] for line in takewhile(lambda line: line.startswith("# "), lines)]
    return " ".join(takewhile(lambda line: not HOW_TO_RUN.match(line), comment))


def expand_references(text: str) -> list[str]:
    """List the tables and figures that a text names: of "Tables 1 to 2, Figure 8" Table 1, Table 2, Figure 8."""
    references: list[str] = []
    name = ""
    for word in WORDS.finditer(text):
        name = word[1] or name
        numbers = range(int(word[2]), int(word[3]) + 1) if word[2] else [] if word[1] else [word[0]]
        references += [f"{name} {number}" for number in numbers]
    return references


def make_natural_key(reference: str) -> tuple[Any, ...]:
    """Make the sort key of a reference: tables first, then figures, "Table 2" before "Table 10"."""
    name, _, number = reference.partition(" ")
    digits = re.match(r"\d*", number)[0]  # type: ignore[index]
    return name != "Table", name != "Figure", name, int(digits or 0), number


def read_experiment_file(file: Path) -> Experiment:
    """Read what the head of an experiment file says of it."""
    head = read_head(file)
    name, comma, references = head.partition(":")[0].partition(", ")
    is_published = "source: hub" in file.read_text(encoding="utf-8")
    if name not in PAPERS or not comma:
        return Experiment(file, "", [], is_published, head.partition(". ")[0].rstrip("."))
    return Experiment(file, PAPERS[name][0], expand_references(references), is_published, head.partition(". ")[0])


def list_experiments(folder: Path, paper: str = "") -> list[Experiment]:
    """List the experiment files of a folder, of one paper by its key, or all: those of a paper in the order of its
    tables, runs of the paper's own networks first."""
    found = [read_experiment_file(file) for file in sorted(folder.glob("*.yaml"), key=lambda file: file.stem)]
    chosen = [experiment for experiment in found if not paper or experiment.paper == paper]
    first = {e.file: min(map(make_natural_key, e.references), default=(True,)) for e in chosen}
    return sorted(chosen, key=lambda e: (e.paper, not e.is_published, first[e.file], e.file.stem))
