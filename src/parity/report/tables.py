"""Tables from declared columns: numbers as a reader sees them, and the columns that kinds of model share.

Figures are never blank, never p = 0.00, with as many digits as the error warrants."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from parity_certify.result_rows import describe_confidence
from parity_certify.verdict import WITHIN

from parity.experiment.options import declaration
from parity.metrics.estimates import PERCENT, Estimate, estimate_of, is_narrow
from parity.report.blocks import Entry, Table, format_text, is_missing, list_records
from parity.report.settings import SummaryRow

NOT_RUN = "not run"
SMALLEST_P = 1e-300  # a smaller p-value is shown as "< 1e-300"
SPACE = "\N{NO-BREAK SPACE}"
NOUGHT = 1e-9  # a smaller error is rounding: the figures that were averaged are the same
WIDE = 10  # a table of more columns than this leaves out those with the same entry in every row
KINDS = {"certified": "good", "consistent": "consistent", "lossy": "bad", "inconclusive": "unsure"}  # of verdicts
OUTCOMES = {  # by outcome of a test its CSS class
    NOT_RUN: "none", "identical": "good", WITHIN: "good", "rejected": "bad", "differs by rounding": "bad",
    "differs by more than eps": "bad", "size off": "bad", "size unclear": "unsure", "interval excludes 0": "unsure",
}  # fmt: skip
ABSENT = Entry(NOT_RUN, style="none")
NONE = Entry("n/a", style="none")  # shown where no run could have this figure
Maker = Callable[[SummaryRow], Entry]


# --- how numbers are written


def format_number(value: Any, digits: int = 4) -> str:
    """Format a figure: `digits` significant ones, whole numbers in full; text as it is; "not run" if it is missing."""
    if is_missing(value):
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


def format_p_value(value: Any) -> str:
    """Format a p-value with two significant digits; a value too small to represent is shown as a bound."""
    if is_missing(value):
        return NOT_RUN
    if value <= SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def count_decimals(error: float) -> int:
    """Count the decimals, 8 at most, that show two significant digits of an error."""
    return min(8, max(0, 1 - math.floor(math.log10(error))))


def show_estimate(figure: Estimate) -> Entry:
    """Format a figure with its interval, or else its standard error, beneath it; "not run" if it is missing."""
    value, error, low, high, _ = figure
    if is_missing(value):
        return ABSENT
    if low is not None and high is not None and not is_missing(low) and not is_missing(high):
        decimals = count_decimals((high - low) / 4) if high > low else 2
        return Entry(f"{value:,.{decimals}f}", f"{low:,.{decimals}f} to {high:,.{decimals}f}")
    if error is None or is_missing(error) or not 0 <= error < math.inf:
        return Entry(format_number(value))
    if error < NOUGHT:
        return Entry(format_number(value), f"±{SPACE}0")
    decimals = count_decimals(error)
    return Entry(f"{value:,.{decimals}f}", f"±{SPACE}{error:,.{decimals}f}")


def show_number(value: Any, digits: int = 4, absent: Entry = ABSENT) -> Entry:
    return absent if is_missing(value) else Entry(format_number(value, digits))


def show_percent(share: Estimate) -> Entry:
    if is_missing(share.value):
        return ABSENT
    text = f"{100 * share.value:.{0 if share.value >= 0.1 or share.value == 0 else 1}f}%"
    return Entry(text, "" if share.error is None else f"±{SPACE}{100 * share.error:.0f}%")


def show_ratio(value: Any) -> Entry:
    return ABSENT if is_missing(value) else Entry(f"{value:.2f}×")


def show_bound(value: Any) -> Entry:
    """Round an upper bound up to two significant digits, so that it still holds as shown."""
    if is_missing(value) or value <= 0:
        return show_number(value)
    decimals = count_decimals(value)
    return Entry(f"{math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}")


def show_pill(row: SummaryRow, *columns: str) -> Entry:
    """Show a row's verdict in its colour, beneath it the row's note and the texts in `columns`."""
    detail = "; ".join(filter(None, (format_text(row.get(name)) for name in ("note", *columns))))
    style = KINDS.get(format_text(row.get("verdict_kind")), "none")
    return Entry(format_text(row.get("pill"), NOT_RUN), detail, f"chip {style}")


def show_chip(outcome: Any) -> Entry:
    """Show the outcome of a test (`parity_certify.result_rows`) as a coloured label, other text as it is."""
    text = format_text(outcome, NOT_RUN)
    return Entry(text, style=f"chip {OUTCOMES.get(text, 'plain')}")


# --- how tables are made of rows


class Column(NamedTuple):
    heading: str
    entry: Maker | str  # what shows a row's entry; a name stands for `show_measured` of it
    meaning: str = ""


def show_table(rows: Iterable[SummaryRow], columns: Sequence[Column], caption: str = "", style: str = "") -> Table:
    """Show a table with a line for each row. With more than WIDE columns, those with the same entry in every line are
    named in the caption, which also explains grey entries."""
    all_rows = list(rows)
    makers = [show_measured(c.entry) if isinstance(c.entry, str) else c.entry for c in columns]
    lines = [[maker(row) for maker in makers] for row in all_rows]
    if len(columns) > WIDE and (same_columns := find_same_columns(lines)):
        shared = "; ".join(f"{columns[i].heading} {lines[0][i].text}" for i in same_columns)
        caption = f"{caption.rstrip('.')}. The same in every row: {shared}.".lstrip(". ")
        differ = [i for i in range(len(columns)) if i not in same_columns]
        columns, lines = [columns[i] for i in differ], [[line[i] for i in differ] for line in lines]
    styles = {entry.style for line in lines for entry in line}
    caption = " ".join(filter(None, [caption, FEW * ("few" in styles), FAINT * ("faint" in styles)]))
    heads = [(c.heading, c.meaning) for c in columns]
    methods = [format_text(row.get("method")) for row in all_rows]
    return Table(heads, lines, caption, list(map(choose_class, all_rows)), methods, style)


BUSY = 1.5  # with more load than this on each core a time tells little
FAINT = (
    "Grey speeds are predicted, from counts and from what passes cost here, or the machine was busy (load above 1.5 a"
    " core)."
)
FEW = "Grey quality: no difference seen, but too few images or texts to see one that would matter, or a part of them."


def find_same_columns(lines: Sequence[Sequence[Entry]]) -> list[int]:
    """Find, in three lines or more, the columns after the first whose entry is the same in all and has no detail."""
    if len(lines) < 3:
        return []
    columns = enumerate(zip(*lines, strict=True))
    return [i for i, column in columns if i and len(set(column)) == 1 and not column[0].detail and column[0].text]


def is_mismatch(row: SummaryRow) -> bool:
    return not is_missing(row.get("mismatch")) and bool(row["mismatch"])


def choose_class(row: SummaryRow) -> str:
    """Choose a row's CSS class: "mismatch" if verdict and claim contradict, "baseline" for plain decoding, else ""."""
    return "mismatch" if is_mismatch(row) else "" if row.get("role", "method") == "method" else "baseline"


# --- functions that show a row's entry


def show_value(name: str, digits: int = 4, absent: Entry = ABSENT) -> Maker:
    """Make a function that shows the figure `name` of a row, without an error; `absent` if it is missing."""
    return lambda row: show_number(row.get(name), digits, absent)


def explain_missing(figure: Estimate) -> Entry:
    """Show the reason why a figure is missing, as its metric recorded it, or "not run"."""
    lacking, _, which = (figure.why or NOT_RUN).partition(": ")
    return Entry(lacking, which, "none")


def show_measured(name: str) -> Maker:
    """Make a function that shows the figure `name` of a row with its interval or error, or why it is missing; grey if
    it is of a part of the images, or of too few to see an effect."""

    def show(row: SummaryRow) -> Entry:
        figure = estimate_of(row, name)
        if figure.missing:
            return explain_missing(figure)
        entry = show_runs(row, name) or show_estimate(figure)
        if figure.why:  # it was measured on a part of the images
            return entry._replace(detail=figure.why, style="few")
        weak = name in format_text(row.get("too_few")).split() and name not in format_text(row.get("moved")).split()
        return entry._replace(style="few") if weak else entry

    return show


def show_runs(row: SummaryRow, name: str) -> Entry | None:
    """Show the mean of a figure over runs, with their standard deviation as papers print it; None for a single run."""
    if is_missing(row.get(f"{name}_runs_sd")):
        return None
    sd = row[f"{name}_runs_sd"]
    decimals = count_decimals(sd) if sd > NOUGHT else 2
    spread = f"±{SPACE}{sd:,.{decimals}f} (sd of {int(row['runs'])} runs)"
    return Entry(f"{row[name]:,.{decimals}f}", spread)


def show_share(name: str) -> Maker:
    return lambda row: show_percent(estimate_of(row, name))


def show_p_values(name: str) -> Maker:
    """Make a function that shows Welch's p-value of the figure `name`, the paired one beneath; "n/a" if missing."""

    def show(row: SummaryRow) -> Entry:
        welch, paired = row.get(f"{name}_welch"), row.get(f"{name}_paired")
        if is_missing(welch):
            return NONE
        return Entry(format_p_value(welch), "" if is_missing(paired) else f"paired {format_p_value(paired)}")

    return show


def show_text(name: str, detail: str = "") -> Maker:
    return lambda row: Entry(format_text(row.get(name), "any"), format_text(row.get(detail)), "text")


# --- columns of the tables of every kind of model


CLAIMANTS = {
    "paper": "its paper says", "account": "others' account says", "project": "we say", "makers": "its makers say",
}  # fmt: skip
# The mark beside a method's name.
ORIGINS = {"paper": "", "account": "from others' account", "project": "ours", "makers": "made elsewhere"}


def find_mark(row: SummaryRow) -> str:
    """Find the mark beside a method's name, such as "ours", "lossless form ours" or "a lossy variant"; "" if it is
    built from its paper."""
    origin = row.get("origin", "paper")
    declared = declaration(row["kind"], row["method"])
    mark = (declared.MARK if row.get("claim") == declared.CLAIM else "") or ORIGINS[origin]
    if not mark and row.get("claimant") == "project" and (row.get("claim"), declared.CLAIM) == ("lossy", "lossless"):
        return "a lossy variant"
    if origin != "project" and row.get("claimant") == "project" and row.get("claim") == "lossless":
        return "; ".join(filter(None, [f"lossless form {declared.EXACT_BY}", mark]))
    return mark


def state_claim(row: SummaryRow) -> str:
    """Write what is claimed and by whom, "its paper says lossless"; "no claim" without one."""
    return "no claim" if is_missing(row.get("claim")) else f"{CLAIMANTS[row.get('claimant', 'paper')]} {row['claim']}"


def show_claim(row: SummaryRow) -> Entry:
    broken = "better than claimed" if row.get("claim") == "lossy" else "not borne out"
    return Entry(state_claim(row), *((broken, "wrong") if is_mismatch(row) else ()))


def show_label(row: SummaryRow) -> Entry:
    """Show a row's label and mark, beneath it its cell's key, and of plain decoding its role and seed."""
    role = row.get("role", "method")
    details = [format_text(row.get("key")), f"{role}, seed {row['seed']}" if role != "method" else ""]
    return Entry(format_text(row.get("label"), "any"), ", ".join(filter(None, details)), "name", mark=find_mark(row))


def show_fewer(row: SummaryRow) -> Entry:
    return show_ratio(1 / row.get("nfe_ratio", math.nan))


def doubt_speed(row: SummaryRow, name: str) -> str:
    """Explain why the speed `name` is not measured well: predicted, on a busy machine (load above BUSY a core), or with
    a wide interval; "" if it is, of plain decoding, or if it is missing."""
    figure, load, cores = estimate_of(row, name), row.get("load"), count_cores(row)
    if figure.missing or row.get("role") in ("reference", "control"):
        return ""
    if row.get(f"{name}_how") == "predicted":
        return "predicted"
    if not is_missing(load) and cores and load > BUSY * cores:  # type: ignore[operator]
        return f"busy: load {format_number(load, 2)} on {cores} cores"
    if row.get(f"{name}_how") == "timed roughly":
        return "wide interval, or few rounds"
    return "" if is_narrow(figure) else "wide interval"


def count_cores(row: SummaryRow) -> int:
    match = re.search(r"(\d+) cores", format_text(row.get("machine")))
    return int(match[1]) if match else 0


def show_reported(row: SummaryRow) -> Entry:
    """Show the speed that the makers of a row's tokens report, beneath it by whom and on what."""
    seconds, times = estimate_of(row, "reported_seconds"), estimate_of(row, "reported_speedup")
    if seconds.missing:
        return explain_missing(seconds)
    took = f"{format_number(seconds.value, 3)} s an image"
    batch = int(row["batch"])
    about = f"{f'in batches of {batch}, ' * (batch > 1)}{row['reported_by']}"
    if times.missing:
        return Entry(f"{took}, as reported", about, "text")
    return Entry(f"{times.value:.2f}× as reported", f"{took}, {about}; times their own plain decoding's", "text")


def show_speed(name: str) -> Maker:
    """Make a function that shows the speed `name` of a row; if it is not measured well the predicted one, grey, and
    why; of tokens made elsewhere what their makers report."""

    def show(row: SummaryRow) -> Entry:
        if not is_missing(row.get("reported_by")):
            return show_reported(row)
        if name == "speedup" and row.get("batch") == 1:
            return ABSENT  # it stands in the column of one alone
        figure, over_captured = estimate_of(row, name), estimate_of(row, f"{name}_over_captured")
        doubt, predicted = doubt_speed(row, name), row.get(f"{name}_predicted")
        interval = "" if figure.low is None else f"{figure.low:.2f} to {figure.high:.2f}"
        other = ""
        if not over_captured.missing:
            other = f"; {over_captured.value:.2f}× plain decoding with CUDA graphs, which the method cannot use"
        if not doubt:
            return show_ratio(figure.value)._replace(detail=f"{interval}{other}")
        if is_missing(predicted):
            return show_ratio(figure.value)._replace(detail=f"{interval}; {doubt}".strip("; "), style="faint")
        measured = f"; timed {interval}, {doubt}" if interval else ""
        return show_ratio(predicted)._replace(detail=f"predicted{measured}{other}", style="faint")

    return show


METHOD = Column("Method", show_label, "the method, the options in which its variants differ, and the key of its cell")


def make_verdict_columns(alpha: float) -> list[Column]:
    bounded = f"bound of total variation with {describe_confidence(alpha)} confidence, on each small model"
    return [
        METHOD,
        Column("Verdict", lambda row: show_pill(row, "reach"), "does it draw from plain decoding's distribution?"),
        Column("Claim", show_claim, "what is said of the distribution, and by whom"),
        Column("TV ≤", lambda row: show_bound(row.get("tv_bound")), bounded),
        Column(
            "MDE", lambda row: show_bound(row.get("minimum_detectable_effect")), "smallest effect found with power 0.8"
        ),
    ]


RUNS_AS = "how its passes run; a speed is times plain decoding that runs likewise"
COST = [
    Column("n", "n", "number of images or texts"),
    Column("Fewer passes", show_fewer, "passes of plain decoding divided by the method's, counted"),
    Column(
        "Speed of a batch", show_speed("speedup"),
        f"time of plain decoding divided by the method's, timed in turns, with the {PERCENT} interval, or predicted",
    ),
]  # fmt: skip
CLOCK = [
    Column("Speed of one alone", show_speed("speedup_single"), "the same of images or texts decoded alone"),
    Column("Runs as", lambda row: Entry(format_text(row.get("runs_as"), "not timed")), RUNS_AS),
    Column(
        "Networks", show_share("network_share"), "share of the time spent in networks; the rest is the decoder's own"
    ),
]


# --- the table of equality tests


def show_optional(name: str, form: Callable[[Any], str] = format_number) -> Maker:
    """Make a function that shows a figure by `form`; if a test lacks it "n/a", if the test was not run "not run"."""

    def show(row: SummaryRow) -> Entry:
        absent = ABSENT if row.get("verdict") == NOT_RUN else NONE
        return absent if is_missing(row.get(name)) else Entry(form(row[name]))

    return show


def show_seed(row: SummaryRow) -> Entry:
    return show_optional("seed")(row)._replace(detail=f"repeat {int(row['repeat'])}" if row.get("repeat") else "")


JOINT = ("all four", "joint G", "Valiant-Valiant", "conditionals", "TV certificate", "e-value")
UNITS = {  # the unit of a test's effect, by the longest beginning of its name in this table
    **dict.fromkeys(JOINT, "total variation"), "pairs": "total variation", "positions": "shift a token",
    "slots": "shift a token", "transitions": "shift a token", "distances": "shift a token",
    "likelihood": "nats a token", "order": "nats a token", "likelihood spread": "share of the variance",
    "correlations": "correlation",
    "rows": "agreement a token", "agreement": "agreement a token", "rows of a batch": "share of draws",
    "noise": "share of numbers", "batches": "share of tokens", "support": "share of tokens",
    "border": "share of tokens", "rank PIT": "Cohen's w",
    "KS": "gap of distribution functions", "energy": "energy distance", "mean shift": "standard deviations",
    "spread ratio": "ratio of deviations", "same tokens": "share of sequences", WITHIN: "times eps", "CLIP": "cosine",
    "CLIP: MMD": "MMD", "log p": "nats a token", "FID difference": "FID",
}  # fmt: skip


def show_effect(row: SummaryRow) -> Entry:
    """Show the effect of a test with three digits, beneath it its unit, if it is listed in UNITS."""
    test = format_text(row.get("test"))
    unit = UNITS.get(max((name for name in UNITS if test.startswith(name)), key=len, default=""), "")
    entry = show_optional("effect", format_short)(row)
    return entry if is_missing(row.get("effect")) else entry._replace(detail=unit)


format_short = partial(format_number, digits=3)
TESTS = Column("Tests", "tests", "number of deciding tests that could be run")
EQUALITY = [
    Column("Layer", show_text("layer")),
    Column("On", show_text("model"), "the model that was decoded"),
    Column("Method", lambda r: Entry(format_text(r.get("label"), "any"), format_text(r.get("key")), "name")),
    Column("Test", show_text("test", "note")),
    Column("n", show_optional("n"), "sequences, tokens or prompts: the units that the test counts"),
    Column("Statistic", show_optional("statistic", format_short)),
    Column("p", show_optional("p_value", format_p_value)),
    Column("p, Holm", show_optional("p_holm", format_p_value), "corrected for all tests of the decoder in the layer"),
    Column("Effect", show_effect, "and its unit"),
    Column(
        "MDE",
        show_optional("minimum_detectable_effect", format_short),
        "smallest effect found with power 0.8, in the unit of the effect",
    ),
    Column("Verdict", lambda r: show_chip(r["verdict"])),
    Column("Seed", show_seed, "a rejected test is repeated on a fresh seed"),
]


def show_equality(rows: pd.DataFrame, caption: str) -> Table:
    """Show test results as a table; if `rows` count tests (`select_strongest`), with a column of the counts."""
    return show_table(list_records(rows), [EQUALITY[0], *([TESTS] if "tests" in rows else []), *EQUALITY[1:]], caption)


def select_strongest(rows: pd.DataFrame) -> pd.DataFrame:
    """Select per decoder and layer its first-run test of the smallest p, "rejected" if any is, and count `tests`."""
    result = []
    for _, group in rows[rows["repeat"] == 0].groupby(["label", "layer"], sort=False):
        p = group["p_holm"].astype(float).fillna(group["p_value"].astype(float))
        best = group.iloc[int(p.fillna(np.inf).argmin())]
        rejected = bool((group["verdict"] == "rejected").any())
        result.append({**best, "tests": int(p.notna().sum()), "verdict": "rejected" if rejected else best["verdict"]})
    return pd.DataFrame(result)
