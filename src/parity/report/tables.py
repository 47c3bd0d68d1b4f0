"""Tables from declared columns: what a heading means, and how an entry is made of a row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from parity.metrics.estimates import Estimate, estimate_of
from parity.report.blocks import (
    ABSENT,
    NOT_RUN,
    Entry,
    Table,
    bound,
    chip,
    estimated,
    grey,
    missing,
    p_value,
    percent,
    pill,
    plain,
    times,
    words,
)
from parity.report.settings import records

Row = Mapping[str, Any]
Maker = Callable[[Row], Entry]
NONE = Entry("n/a", style="none")  # there is no such figure, whatever is run


class Column(NamedTuple):
    heading: str
    entry: Maker
    meaning: str = ""


def unmarked(row: Row) -> str:
    return ""


def show(
    rows: Iterable[Row],
    columns: Sequence[Column],
    caption: str = "",
    mark: Callable[[Row], str] = unmarked,
    style: str = "",
) -> Table:
    """A table with a line for each row; `mark` gives a line's CSS class. In a wide one what is the same in every line
    is shared once, in the caption."""
    every = list(rows)
    lines = [[c.entry(row) for c in columns] for row in every]
    same = alike(lines) if len(columns) > WIDE else []
    if same:
        shared = "; ".join(f"{columns[i].heading} {lines[0][i].text}" for i in same)
        caption = f"{caption.rstrip('.')}. The same in every row: {shared}.".lstrip(". ")
        kept = [i for i in range(len(columns)) if i not in same]
        columns, lines = [columns[i] for i in kept], [[line[i] for i in kept] for line in lines]
    if any(entry.style == "few" for line in lines for entry in line):
        caption = f"{caption} {FEW}".strip()
    methods = [words(row.get("method")) for row in every]
    heads = [(c.heading, c.meaning) for c in columns]
    return Table(heads, lines, caption, [mark(row) for row in every], methods, style)


WIDE = 10  # columns
FEW = "Grey figures: too few images or texts to tell a change that matters from none."


def alike(lines: Sequence[Sequence[Entry]]) -> list[int]:
    """Columns behind the first with one short entry in all of three lines or more."""
    if len(lines) < 3:
        return []
    columns = enumerate(zip(*lines, strict=True))
    return [i for i, column in columns if i and len(set(column)) == 1 and not column[0].detail and column[0].text]


# --- makers of entries


def value(name: str, digits: int = 4) -> Maker:
    return lambda row: plain(row.get(name), digits)


def unmeasured(figure: Estimate) -> Entry:
    """The entry for a missing figure: what its metric lacked, if it recorded that."""
    lacking, _, which = (figure.why or NOT_RUN).partition(": ")
    return Entry(lacking, which, "none")


def measured(name: str, scale: float = 1.0) -> Maker:
    """A figure with what is known of its error beneath it: its interval, or its standard error."""

    def entry(row: Row) -> Entry:
        figure = estimate_of(row, name)
        if figure.missing:
            return unmeasured(figure)
        entry = estimated(figure.times(scale))
        return grey(entry) if name in words(row.get("too_few")).split() else entry

    return entry


def share(name: str) -> Maker:
    return lambda row: percent(estimate_of(row, name))


def two_p(name: str) -> Maker:
    """Welch's p-value, and the paired one beneath."""

    def entry(row: Row) -> Entry:
        welch, paired = row.get(f"{name}_welch"), row.get(f"{name}_paired")
        return NONE if missing(welch) else Entry(p_value(welch), "" if missing(paired) else f"paired {p_value(paired)}")

    return entry


def only_if(name: str, maker: Maker, otherwise: str) -> Maker:
    """An entry for rows that have something under `name`; what the others lack is said."""
    return lambda row: maker(row) if row.get(name) else Entry(otherwise, style="none")


def text(name: str, detail: str = "", absent: str = "any") -> Maker:
    return lambda row: Entry(words(row.get(name), absent), words(row.get(detail)), "text")


# --- columns that every kind of model has


def mismatch(row: Row) -> bool:
    """Whether the verdict contradicts the claim."""
    return not missing(row.get("mismatch")) and bool(row["mismatch"])


def claimed(row: Row) -> Entry:
    """What the paper says, and whether the tests contradict it."""
    broken = "better than claimed" if row.get("claim") == "lossy" else "not borne out"
    return Entry(words(row.get("claim"), NOT_RUN), *((broken, "wrong") if mismatch(row) else ()))


def mark(row: Row) -> str:
    return "mismatch" if mismatch(row) else "" if row.get("role", "method") == "method" else "baseline"


def label_entry(row: Row) -> Entry:
    """The label of a row's cell, and its key, role and seed."""
    role = row.get("role", "method")
    details = [words(row.get("key")), f"{role}, seed {row['seed']}" if role != "method" else ""]
    return Entry(words(row.get("label"), "any"), ", ".join(filter(None, details)), "name")


METHOD = Column("Method", label_entry, "with the options in which its variants differ, and the key of its cell")
VERDICT = [
    METHOD,
    Column("Verdict", lambda row: pill(row, "reach"), "same distribution as plain decoding?"),
    Column("Claim", claimed, "what the method's paper says"),
    Column("TV ≤", lambda row: bound(row.get("tv_bound")), "total variation, 95%, on the worst enumerable model"),
    Column("MDE", lambda row: bound(row.get("minimum_detectable_effect")), "smallest found with power 0.8"),
]


def fewer(row: Row) -> Entry:
    return ABSENT if missing(row.get("nfe_ratio")) else times(1 / row["nfe_ratio"])


def speed(row: Row) -> Entry:
    """With its quartiles over batches, where several were timed."""
    entry, low, high = (times(row.get(f"speedup{end}")) for end in ("", "_q1", "_q3"))
    return entry if low == high else entry._replace(detail=f"{low.text} to {high.text}")


def alone(row: Row) -> Entry:
    return times(row.get("speedup_single"))


COST = [
    Column("n", value("n"), "images or texts"),
    Column("Fewer passes", fewer, "passes of plain decoding / of this method, counted"),
    Column("Speed", speed, "plain decoding's time / its own, in the same job: median and quartiles over batches"),
]
CLOCK = [
    Column("Speed at batch 1", alone, "the same, of each job's first row decoded alone"),
    Column("Networks", share("network_share"), "share of the time that is its networks'; the rest is the decoder's"),
]


def any_table(frame: pd.DataFrame, caption: str = "") -> Table:
    """A frame as it is; missing values are "not run"."""

    def maker(name: str) -> Maker:
        if name in ("p", "largest_p") or name.startswith("p_"):
            return lambda row: Entry(p_value(row[name]), style="none" if missing(row[name]) else "")
        return (lambda row: chip(row[name])) if name == "verdict" else value(name)

    columns = [Column(str(c).replace("_", " ").capitalize(), maker(str(c))) for c in frame.columns]
    return show(records(frame), columns, caption)


# --- tests of the law


def optional(name: str, maker: Callable[[Any], Entry] = plain) -> Maker:
    """A figure that a test may lack: "n/a" if the test was run, else "not run"."""
    absent = {True: ABSENT, False: NONE}
    return lambda r: absent[r["verdict"] == NOT_RUN] if missing(r.get(name)) else maker(r[name])


def seed(row: Row) -> Entry:
    return optional("seed")(row)._replace(detail=f"repeat {int(row['repeat'])}" if row.get("repeat") else "")


def rounded(number: Any) -> Entry:
    return plain(number, 3)


def p_entry(number: Any) -> Entry:
    return Entry(p_value(number))


EQUALITY = {
    "layer": Column("Layer", text("layer")),
    "tests": Column("Tests", value("tests"), "deciding tests that could be run"),
    "model": Column("On", text("model"), "the model that was decoded"),
    "label": Column("Method", lambda r: Entry(words(r.get("label"), "any"), words(r.get("key")), "name")),
    "test": Column("Test", text("test", "note")),
    "n": Column("n", optional("n"), "sequences, tokens or prompts: the units that the test counts"),
    "statistic": Column("Statistic", optional("statistic", rounded)),
    "p_value": Column("p", optional("p_value", p_entry)),
    "p_holm": Column("p, Holm", optional("p_holm", p_entry), "corrected for all tests of the decoder in the layer"),
    "effect": Column("Effect", optional("effect", rounded), "in the test's own units"),
    "mde": Column("MDE", optional("minimum_detectable_effect", rounded), "smallest effect found with power 0.8"),
    "verdict": Column("Verdict", lambda r: chip(r["verdict"])),
    "seed": Column("Seed", seed, "a repeat is run on a fresh seed where the first run rejected"),
}


def equality_table(rows: pd.DataFrame, caption: str) -> Table:
    return show(records(rows), [c for name, c in EQUALITY.items() if name != "tests" or "tests" in rows], caption)


def strongest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per decoder and layer: its test of the smallest p, "rejected" if any of them is. First runs only."""
    result = []
    for _, own in rows[rows["repeat"] == 0].groupby(["label", "layer"], sort=False):
        p = own["p_holm"].astype(float).fillna(own["p_value"].astype(float))
        best = own.iloc[int(p.fillna(np.inf).argmin())]
        rejected = bool((own["verdict"] == "rejected").any())
        result.append({**best, "tests": int(p.notna().sum()), "verdict": "rejected" if rejected else best["verdict"]})
    return pd.DataFrame(result)
