"""Read two results folders, pair their rows, and estimate how passes, quality and seconds differ."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from parity.base.errors import ParityError
from parity.experiment.options import KINDS
from parity.metrics.estimates import Estimate, estimate_of, mean_and_error, prompt_groups
from parity.metrics.tables import read_table
from parity.report.blocks import format_text, is_missing, list_records
from parity.report.collect import QUALITY, compute_changes
from parity.report.settings import parse_settings

ALPHA = 0.05  # the chance that any figure of two folders that do not differ counts as changed (Bonferroni)
# Paired rows agree in these columns.
SAME = ("kind", "task", "model", "method", "options", "sampling", "cache", "batch", "role")
COMPARED = (*QUALITY, "seconds_per_image")
Identity = tuple[Any, ...]


@dataclass
class Results:
    """A folder results/<experiment>."""

    folder: Path
    rows: dict[Identity, dict[str, Any]]  # the rows of summary.csv by what identifies them
    records: pd.DataFrame  # records.parquet: a row per image or text

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(row["kind"] == kind for row in self.rows.values())]

    def records_of(self, row: Mapping[str, Any]) -> pd.DataFrame:
        chosen = self.records[self.records["key"] == row["key"]].sort_values("id", kind="stable")
        return chosen.dropna(axis=1, how="all").reset_index(drop=True)


def read_results(folder: Path) -> Results:
    """Read summary.csv and records.parquet of a folder. Raises ParityError if it lacks one, or a needed column."""
    try:
        summary = pd.read_csv(folder / "summary.csv", dtype={"key": str, "options": str, "columns_version": str})
        recorded = read_table(folder / "records.parquet")
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())[:120]
        raise ParityError(f"{folder}: {problem}; allowed: a folder results/EXPERIMENT of a run") from None
    if absent := sorted({"kind", "model", "method", "options", "role", "key"} - set(summary)) or sorted(
        {"id", "key"} - set(recorded)
    ):
        raise ParityError(f"{folder}: no column {absent[0]!r}; allowed: a folder results/EXPERIMENT of a run")
    rows: dict[Identity, dict[str, Any]] = {}
    repeats: Counter[Identity] = Counter()
    for row in list_records(summary):
        identity = identify(row)
        rows[*identity, repeats[identity]] = row
        repeats[identity] += 1
    return Results(folder, rows, recorded)


def identify(row: Mapping[str, Any]) -> Identity:
    """Return what a row shares with its counterpart in another folder: all settings but seed, prompts and sizes."""
    task = {name: value for name, value in parse_settings(row.get("settings")).items() if name != "rows"}
    return str(task), *(format_text(row.get(name)) for name in SAME)


@dataclass
class Pair:
    a: dict[str, Any]
    b: dict[str, Any]
    records_a: pd.DataFrame
    records_b: pd.DataFrame

    @property
    def label(self) -> str:
        return str(self.b.get("label") or self.b["method"])

    @cached_property
    def passes(self) -> tuple[Estimate, Estimate]:
        """Passes of an image or text in a and b, of vectors calls one after another; missing without records of
        them."""
        a, b = (mean_by_prompt(frame, self.count) for frame in (self.records_a, self.records_b))
        return a, b

    @property
    def count(self) -> str:
        """The column that counts passes in the records of both or, if there is none, of one."""
        in_a, in_b = set(self.records_a), set(self.records_b)
        found = (name for names in (in_a & in_b, in_a | in_b) for name in ("depth", "nfe", "passes") if name in names)
        return next(found, "passes")

    @cached_property
    def passes_difference(self) -> Estimate:
        """Passes of b less those of a: by prompt if both have the same, else from the errors of both."""
        a, b = self.records_a, self.records_b
        if any(passes.missing for passes in self.passes):
            return Estimate()
        if a["id"].tolist() == b["id"].tolist():
            return mean_by_prompt(b.assign(gap=b[self.count] - a[self.count]), "gap")
        first, second = self.passes
        return Estimate(second.value - first.value, math.hypot(first.error or 0.0, second.error or 0.0))

    @cached_property
    def quality(self) -> dict[str, Estimate]:
        """Differences b - a of each figure of quality that both have: paired by prompt where they have the same."""
        differences = compute_changes(self.b, self.a, self.records_b, self.records_a)
        return {name.removesuffix("_change"): gap for name, gap in differences.items()}

    @property
    def estimated(self) -> dict[str, tuple[float, float]]:
        """Each difference and its standard error, of those that have one."""
        gaps = {"passes": self.passes_difference, **self.quality}
        return {name: (gap.value, gap.error) for name, gap in gaps.items() if gap.error is not None}

    @property
    def seconds(self) -> tuple[Estimate, Estimate] | None:
        """Seconds of an image or text in a and in b; None unless the same machine is named in both."""
        a, b = (estimate_of(row, "seconds_per_image") for row in (self.a, self.b))
        return (a, b) if self.has_same_machine() and not (a.missing or b.missing) else None

    def list_lacking(self) -> Iterator[tuple[str, str]]:
        """Yield each figure that only one of the two has, with the name of the other, "A" or "B"."""
        figures = {name: tuple(estimate_of(row, name) for row in (self.a, self.b)) for name in COMPARED}
        for figure, (a, b) in {"passes": self.passes, **figures}.items():
            if a.missing != b.missing:
                yield figure, "A" if a.missing else "B"

    def has_same_machine(self) -> bool:
        return not is_missing(self.a.get("machine")) and self.a["machine"] == self.b.get("machine")

    def find_changed(self, z: float) -> list[str]:
        """Name what changed: the kind of verdict, and figures that differ by more than z standard errors."""
        verdict = (
            ["verdict"] if format_text(self.a.get("verdict_kind")) != format_text(self.b.get("verdict_kind")) else []
        )
        return verdict + [name for name, (gap, error) in self.estimated.items() if abs(gap) > z * error]


def mean_by_prompt(frame: pd.DataFrame, column: str) -> Estimate:
    """Return the mean of a column of the records, its error clustered by prompt; missing if they lack the column."""
    if column not in frame:
        return Estimate()
    groups = prompt_groups(frame["id"].to_numpy())
    return Estimate(*mean_and_error(frame[column].to_numpy(float), groups))


@dataclass
class Comparison:
    a: Results
    b: Results
    pairs: list[Pair]

    @cached_property
    def z(self) -> float:
        """Standard errors beyond which a figure counts as changed, among all figures that are compared."""
        count = sum(len(pair.estimated) for pair in self.pairs)
        return float(stats.norm.isf(ALPHA / 2 / max(1, count)))

    def list_lacking(self) -> Iterator[str]:
        """Yield a sentence for each figure that a folder lacks, with the rows in which the other has it."""
        labels: dict[tuple[str, str], list[str]] = {}
        for pair in self.pairs:
            for lacking in pair.list_lacking():
                labels.setdefault(lacking, []).append(pair.label)
        for (figure, folder), rows in labels.items():
            yield f"Not compared: {figure} of {', '.join(rows)}, which {folder} lacks."

    def list_versions(self) -> Iterator[str]:
        """Yield a sentence if the columns of the two folders are of different versions (`collect.COLUMNS_VERSION`)."""
        texts = []
        for results in (self.a, self.b):
            versions = sorted({format_text(row.get("columns_version")) for row in results.rows.values()})
            texts.append(" and ".join(f"of version {v}" if v else "older than any version" for v in versions))
        a, b = texts
        if a != b:
            yield f"Columns of A are {a}, of B {b}: one name may mean two figures; run both with one version of Parity."

    def list_unpaired(self) -> Iterator[tuple[Path, list[str]]]:
        """Yield each folder with the labels of its rows that the other folder lacks."""
        for folder_results, counterpart in ((self.a, self.b), (self.b, self.a)):
            rows = [row for identity, row in folder_results.rows.items() if identity not in counterpart.rows]
            yield folder_results.folder, [format_text(row.get("label")) or row["method"] for row in rows]


def compare_results(a: Path, b: Path) -> Comparison:
    """Read two folders and pair their rows. Raises ParityError if one holds no results, or if they share no row."""
    first, second = read_results(a), read_results(b)
    if not set(first.kinds) & set(second.kinds):
        kinds = f"{a} holds {', '.join(first.kinds)}, {b} holds {', '.join(second.kinds)}"
        raise ParityError(f"{kinds}; allowed: two folders with a kind of model in common")
    pairs = [
        Pair(first.rows[identity], row, first.records_of(first.rows[identity]), second.records_of(row))
        for identity, row in second.rows.items()
        if identity in first.rows
    ]
    if not pairs:
        raise ParityError(f"{a}, {b}: no row in common; allowed: folders with the same model, method and options")
    return Comparison(first, second, pairs)


def describe_cell_change(pair: Pair) -> str:
    """Say in what a pair's cells differ (seed, n, dtype, else prompts or weights); "" if they are the same cell."""
    if pair.a["key"] == pair.b["key"]:
        return ""
    names = [name for name in ("seed", "n", "dtype") if format_text(pair.a.get(name)) != format_text(pair.b.get(name))]
    return (
        ", ".join(f"{n} {format_text(pair.a.get(n))} → {format_text(pair.b.get(n))}" for n in names)
        or "prompts or weights"
    )
