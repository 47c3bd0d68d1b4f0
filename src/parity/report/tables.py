"""Tables from declared columns: numbers as a reader sees them, and the columns that kinds of model share.

Figures are never blank, never p = 0.00, with as many digits as the error warrants.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from parity_certify.result_rows import describe_confidence
from parity_certify.verdict import WITHIN

from parity.metrics.estimates import PERCENT, Estimate, estimate_of
from parity.report.blocks import Entry, Table, missing, records, words

NOT_RUN = "not run"
SMALLEST_P = 1e-300  # where p-values from formulas are cut: smaller ones are shown as a bound
SPACE = "\N{NO-BREAK SPACE}"
NOUGHT = 1e-9  # a smaller error is rounding, as where all figures are the same
WIDE = 10  # columns of a table that leaves out those with the same entry in every row
KINDS = {"certified": "good", "consistent": "consistent", "lossy": "bad", "inconclusive": "unsure"}  # of verdicts
OUTCOMES = {  # of tests
    NOT_RUN: "none", "identical": "good", WITHIN: "good", "rejected": "bad", "differs by rounding": "bad",
    "differs by more than eps": "bad", "size off": "bad", "size unclear": "unsure", "interval excludes 0": "unsure",
}  # fmt: skip
ABSENT = Entry(NOT_RUN, style="none")
NONE = Entry("n/a", style="none")  # there is no such figure, whatever is run
Row = Mapping[str, Any]
Maker = Callable[[Row], Entry]


# --- numbers


def number(value: Any, digits: int = 4) -> str:
    """Format a figure without an error: `digits` significant ones, whole numbers in full."""
    if missing(value):
        return NOT_RUN
    if isinstance(value, bool | str):
        return str(value)
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def p_value(value: Any) -> str:
    """Two significant digits; a value too small to represent is shown as a bound."""
    if missing(value):
        return NOT_RUN
    if value <= SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def decimals_for(error: float) -> int:
    """Count the decimals that show two significant digits of an error."""
    return min(8, max(0, 1 - math.floor(math.log10(error))))


def estimated(figure: Estimate) -> Entry:
    """Format a figure, and its interval or else its standard error beneath."""
    value, error, low, high, _ = figure
    if missing(value):
        return ABSENT
    if low is not None and high is not None and not missing(low) and not missing(high):
        decimals = decimals_for((high - low) / 4) if high > low else 2
        return Entry(f"{value:,.{decimals}f}", f"{low:,.{decimals}f} to {high:,.{decimals}f}")
    if error is None or missing(error) or not 0 <= error < math.inf:
        return Entry(number(value))
    if error < NOUGHT:
        return Entry(number(value), f"±{SPACE}0")
    decimals = decimals_for(error)
    return Entry(f"{value:,.{decimals}f}", f"±{SPACE}{error:,.{decimals}f}")


def grey(entry: Entry) -> Entry:
    """Grey a figure of too few rows to tell an effect of interest from none (`report.collect.too_few`), and none is
    seen; or one of a part of the pictures."""
    return entry._replace(style="few")


def plain(value: Any, digits: int = 4) -> Entry:
    return ABSENT if missing(value) else Entry(number(value, digits))


def percent(share: Estimate) -> Entry:
    """Format a share, with its standard error beneath."""
    if missing(share.value):
        return ABSENT
    text = f"{100 * share.value:.{0 if share.value >= 0.1 or share.value == 0 else 1}f}%"
    return Entry(text, "" if share.error is None else f"±{SPACE}{100 * share.error:.0f}%")


def times(value: Any) -> Entry:
    """Format a ratio, as "1.25×"."""
    return ABSENT if missing(value) else Entry(f"{value:.2f}×")


def bound(value: Any) -> Entry:
    """Round an upper bound up to two significant digits: it must still hold as shown."""
    if missing(value) or value <= 0:
        return plain(value)
    decimals = decimals_for(value)
    return Entry(f"{math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}")


def pill(row: Row, *more: str) -> Entry:
    """Show a judged row's verdict in a few words, beneath it its note and the columns in `more`."""
    detail = "; ".join(filter(None, (words(row.get(name)) for name in ("note", *more))))
    value = row.get("value")
    style = "none" if missing(value) else KINDS[value.kind]  # type: ignore[union-attr]
    return Entry(words(row.get("pill"), NOT_RUN), detail, f"chip {style}")


def chip(outcome: Any) -> Entry:
    """Show the outcome of a test (`parity_certify.result_rows`) as a coloured label; a figure, such as a bound, is
    plain."""
    text = words(outcome, NOT_RUN)
    return Entry(text, style=f"chip {OUTCOMES.get(text, 'plain')}")


# --- tables


class Column(NamedTuple):
    heading: str
    entry: Maker | str  # a name: the figure of that name, as `measured` writes it
    meaning: str = ""


def show(rows: Iterable[Row], columns: Sequence[Column], caption: str = "", style: str = "") -> Table:
    """Show a table with a line for each row. A wide one says in its caption what is the same in every line."""
    every = list(rows)
    makers = [measured(c.entry) if isinstance(c.entry, str) else c.entry for c in columns]
    lines = [[maker(row) for maker in makers] for row in every]
    if len(columns) > WIDE and (same := find_same_columns(lines)):
        shared = "; ".join(f"{columns[i].heading} {lines[0][i].text}" for i in same)
        caption = f"{caption.rstrip('.')}. The same in every row: {shared}.".lstrip(". ")
        differ = [i for i in range(len(columns)) if i not in same]
        columns, lines = [columns[i] for i in differ], [[line[i] for i in differ] for line in lines]
    if any(entry.style == "few" for line in lines for entry in line):
        caption = f"{caption} {FEW}".strip()
    if any(entry.style == "faint" for line in lines for entry in line):
        caption = f"{caption} {FAINT}".strip()
    heads = [(c.heading, c.meaning) for c in columns]
    return Table(heads, lines, caption, [mark(row) for row in every], [words(r.get("method")) for r in every], style)


BUSY = 1.5  # running processes a core above which a time tells little
WIDEST = 2.0  # times its lower end, the upper end of an interval that still tells something
FAINT = (
    "Grey speeds tell little: the machine was busy (load above 1.5 a core), the interval spans more than a factor of"
    " two, or a single pair was timed."
)
FEW = "Grey: no difference seen, of too few images or texts to see one that would matter; or of a part of the images."


def find_same_columns(lines: Sequence[Sequence[Entry]]) -> list[int]:
    """Find the columns after the first with one short entry in all of three lines or more."""
    if len(lines) < 3:
        return []
    columns = enumerate(zip(*lines, strict=True))
    return [i for i, column in columns if i and len(set(column)) == 1 and not column[0].detail and column[0].text]


def mismatch(row: Row) -> bool:
    """Return whether the verdict contradicts the claim."""
    return not missing(row.get("mismatch")) and bool(row["mismatch"])


def mark(row: Row) -> str:
    """Choose the CSS class of a row."""
    return "mismatch" if mismatch(row) else "" if row.get("role", "method") == "method" else "baseline"


# --- makers of entries


def value(name: str, digits: int = 4) -> Maker:
    return lambda row: plain(row.get(name), digits)


def explain_missing(figure: Estimate) -> Entry:
    """Write the entry for a missing figure: what its metric lacked, if it recorded that."""
    lacking, _, which = (figure.why or NOT_RUN).partition(": ")
    return Entry(lacking, which, "none")


def measured(name: str, scale: float = 1.0) -> Maker:
    """Show a figure with what is known of its error beneath it: its interval, or its standard error."""

    def entry(row: Row) -> Entry:
        figure = estimate_of(row, name)
        if figure.missing:
            return explain_missing(figure)
        entry = estimated(figure.times(scale))
        if figure.why:  # it is of a part of the pictures
            return grey(entry._replace(detail=figure.why))
        weak = name in words(row.get("too_few")).split() and name not in words(row.get("moved")).split()
        return grey(entry) if weak else entry

    return entry


def share(name: str) -> Maker:
    return lambda row: percent(estimate_of(row, name))


def show_p_values(name: str) -> Maker:
    """Show Welch's p-value, and the paired one beneath."""

    def entry(row: Row) -> Entry:
        welch, paired = row.get(f"{name}_welch"), row.get(f"{name}_paired")
        return NONE if missing(welch) else Entry(p_value(welch), "" if missing(paired) else f"paired {p_value(paired)}")

    return entry


def text(name: str, detail: str = "", absent: str = "any") -> Maker:
    return lambda row: Entry(words(row.get(name), absent), words(row.get(detail)), "text")


# --- columns that every kind of model has


CLAIMANTS = {"paper": "its paper says", "account": "others' account says", "project": "we say"}
ORIGINS = {"paper": "", "account": "from others' account", "project": "ours"}  # marks of methods


def origin_of(row: Row) -> str:
    """Find the mark of a row: a method of this project, a lossless form that this project gave to another's method, or
    a method built from others' account of its paper."""
    origin = row.get("origin", "paper")
    if origin != "project" and row.get("claimant") == "project" and row.get("claim") == "lossless":
        return "lossless form ours"
    return ORIGINS[origin]


def state_claim(row: Row) -> str:
    """Write a claim with whose it is: "its paper says lossless"."""
    return "no claim" if missing(row.get("claim")) else f"{CLAIMANTS[row.get('claimant', 'paper')]} {row['claim']}"


def claimed(row: Row) -> Entry:
    """Show the claim with whose it is, and whether the tests contradict it."""
    broken = "better than claimed" if row.get("claim") == "lossy" else "not borne out"
    return Entry(state_claim(row), *((broken, "wrong") if mismatch(row) else ()))


def label_entry(row: Row) -> Entry:
    """Show the label of a row's cell, and its key, role and seed."""
    role = row.get("role", "method")
    details = [words(row.get("key")), f"{role}, seed {row['seed']}" if role != "method" else ""]
    return Entry(words(row.get("label"), "any"), ", ".join(filter(None, details)), "name", mark=origin_of(row))


def fewer(row: Row) -> Entry:
    return times(1 / row.get("nfe_ratio", math.nan))


def doubt_speed(row: Row, name: str) -> str:
    """Explain why a measured speed tells little: the machine was busy, its interval is wide, or it was timed once; else
    ""."""
    figure, load, cores = estimate_of(row, name), row.get("load"), count_cores(row)
    if figure.missing:
        return ""
    if load is not None and not missing(load) and cores and load > BUSY * cores:
        return f"busy: load {number(load, 2)} on {cores} cores"
    if figure.low is None or figure.high is None:
        return "timed once"
    return "wide interval" if figure.high > WIDEST * figure.low else ""


def count_cores(row: Row) -> int:
    """Count the cores of the machine that a row was timed on; 0 where it is not known."""
    found = re.search(r"(\d+) cores", words(row.get("machine")))
    return int(found[1]) if found else 0


def speed_of(name: str) -> Maker:
    """Show a speed with its interval beneath, grey with the reason where it tells little."""

    def entry(row: Row) -> Entry:
        figure, doubt = estimate_of(row, name), doubt_speed(row, name)
        known = times(figure.value)
        interval = "" if figure.low is None else f"{figure.low:.2f} to {figure.high:.2f}"
        known = known._replace(detail="; ".join(filter(None, (interval, doubt))))
        return known._replace(style="faint") if doubt else known

    return entry


METHOD = Column("Method", label_entry, "the method, the options in which its variants differ, and the key of its cell")


def verdict_columns(alpha: float) -> list[Column]:
    """alpha: the level of tests and bounds."""
    bounded = f"bound of total variation with {describe_confidence(alpha)} confidence, on the worst small model"
    return [
        METHOD,
        Column("Verdict", lambda row: pill(row, "reach"), "does it draw from plain decoding's distribution?"),
        Column("Claim", claimed, "what is said of the law, and by whom"),
        Column("TV ≤", lambda row: bound(row.get("tv_bound")), bounded),
        Column("MDE", lambda row: bound(row.get("minimum_detectable_effect")), "smallest effect found with power 0.8"),
    ]


COST = [
    Column("n", "n", "number of images or texts"),
    Column("Fewer passes", fewer, "passes of plain decoding divided by the method's, counted"),
    Column(
        "Speed of a batch", speed_of("speedup"),
        f"time of plain decoding divided by the method's, batches timed in turn, with the {PERCENT} interval",
    ),
]  # fmt: skip
CLOCK = [
    Column("Speed of one alone", speed_of("speedup_single"), "the same of images or texts decoded alone"),
    Column("Networks", share("network_share"), "share of the time spent in networks; the rest is the decoder's own"),
]


# --- tests of the law


def optional(name: str, form: Callable[[Any], str] = number) -> Maker:
    """Show a figure that a test may lack: "n/a" if the test was run, else "not run"."""

    def entry(row: Row) -> Entry:
        absent = ABSENT if row.get("verdict") == NOT_RUN else NONE
        return absent if missing(row.get(name)) else Entry(form(row[name]))

    return entry


def seed(row: Row) -> Entry:
    return optional("seed")(row)._replace(detail=f"repeat {int(row['repeat'])}" if row.get("repeat") else "")


JOINT = ("all four", "joint G", "Valiant-Valiant", "conditionals", "TV certificate", "e-value")
UNITS = {  # of the effect of a test, by the beginning of its name, the longest that fits
    **dict.fromkeys(JOINT, "total variation"), "pairs": "total variation", "positions": "shift a token",
    "slots": "shift a token", "transitions": "shift a token", "distances": "shift a token",
    "likelihood": "nats a token", "order": "nats a token", "likelihood spread": "share of the variance",
    "correlations": "correlation",
    "rows": "agreement a token", "agreement": "agreement a token", "rows of a batch": "share of draws",
    "noise": "share of numbers", "batches": "share of tokens", "support": "share of tokens", "rank PIT": "Cohen's w",
    "KS": "gap of distribution functions", "energy": "energy distance", "mean shift": "standard deviations",
    "spread ratio": "ratio of deviations", "same tokens": "share of sequences", WITHIN: "times eps", "CLIP": "cosine",
    "CLIP: MMD": "MMD", "log p": "nats a token", "FID difference": "FID",
}  # fmt: skip


def unit_of(test: str) -> str:
    """Find the unit of a test's effect; "" of a test that is not listed."""
    return UNITS.get(max((name for name in UNITS if test.startswith(name)), key=len, default=""), "")


def effect(row: Row) -> Entry:
    entry = optional("effect", three)(row)
    return entry if missing(row.get("effect")) else entry._replace(detail=unit_of(words(row.get("test"))))


three = partial(number, digits=3)
TESTS = Column("Tests", "tests", "number of deciding tests that could be run")
EQUALITY = [
    Column("Layer", text("layer")),
    Column("On", text("model"), "the model that was decoded"),
    Column("Method", lambda r: Entry(words(r.get("label"), "any"), words(r.get("key")), "name")),
    Column("Test", text("test", "note")),
    Column("n", optional("n"), "sequences, tokens or prompts: the units that the test counts"),
    Column("Statistic", optional("statistic", three)),
    Column("p", optional("p_value", p_value)),
    Column("p, Holm", optional("p_holm", p_value), "corrected for all tests of the decoder in the layer"),
    Column("Effect", effect, "and its unit"),
    Column(
        "MDE",
        optional("minimum_detectable_effect", three),
        "smallest effect found with power 0.8, in the unit of the effect",
    ),
    Column("Verdict", lambda r: chip(r["verdict"])),
    Column("Seed", seed, "a rejected test is repeated on a fresh seed"),
]


def equality_table(rows: pd.DataFrame, caption: str) -> Table:
    return show(records(rows), [EQUALITY[0], *([TESTS] if "tests" in rows else []), *EQUALITY[1:]], caption)


def strongest(rows: pd.DataFrame) -> pd.DataFrame:
    """Select one row per decoder and layer: its test of the smallest p, "rejected" if any of them is. First runs
    only."""
    result = []
    for _, own in rows[rows["repeat"] == 0].groupby(["label", "layer"], sort=False):
        p = own["p_holm"].astype(float).fillna(own["p_value"].astype(float))
        best = own.iloc[int(p.fillna(np.inf).argmin())]
        rejected = bool((own["verdict"] == "rejected").any())
        result.append({**best, "tests": int(p.notna().sum()), "verdict": "rejected" if rejected else best["verdict"]})
    return pd.DataFrame(result)
