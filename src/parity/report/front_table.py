"""The columns of the first tables, a kind of model each: what a method is, spends and gains, and what moves."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from parity.experiment.decoder_sources import get_short_name, read_decoder
from parity.experiment.made import is_made
from parity.experiment.options import declaration
from parity.experiment.study import metrics
from parity.metrics.estimates import PERCENT, Estimate, Z, estimate_of
from parity.report import tables
from parity.report.anysubset import describe_task
from parity.report.blocks import Entry, Words, format_settings, format_text, is_missing, list_records
from parity.report.collect import QUALITY as EVERY_FIGURE
from parity.report.collect import (
    Gathered,
    compute_critical_z,
    find_effect_of_interest,
    group_same,
    list_changes,
    name_group,
)
from parity.report.cost import BUDGETS, select_best_within
from parity.report.order import rank_row
from parity.report.settings import SummaryRow, parse_settings
from parity.report.tables import (
    ABSENT,
    Column,
    count_decimals,
    explain_missing,
    find_mark,
    format_number,
    grey_out,
    is_mismatch,
    show_pill,
    show_table,
    state_claim,
)

# By kind the figure of quality whose change is shown for each method. Published continuous models show FID, because no
# classifier trained here reads their classes.
QUALITY = {"discrete": "clip_score", "anysubset": "perplexity", "continuous": "right"}
SAME = ("kid", "logp_mean")  # these figures repeat what FID and perplexity say
FIGURES = tuple(name for name in EVERY_FIGURE if name not in SAME)
ALONE = "a single prompt has no error"  # the reason why a figure is known and its change is not


def find_reference(g: Gathered, row: SummaryRow) -> dict[str, Any]:
    """Find the summary row of plain decoding that a row is compared with."""
    return list_records(g.summary[g.summary["key"] == row["reference"]])[0]


# --- the front table's columns, which the page and the docs show


def make_columns(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> list[Column]:
    """List the columns of the front table of texts or of vectors."""
    heading, meaning = ("Calls in sequence", DEPTH) if kind == "continuous" else ("Passes", PASSES)
    return [
        *make_name_columns(),
        *([Column("Task", show_task)] if kind == "anysubset" else []),
        Column(heading, show_fewer_calls, meaning),
        *make_speed_columns(rows, "text" if kind == "anysubset" else "image"),
        make_change_column(g, kind, rows),
    ]


def make_image_columns(rows: list[dict[str, Any]]) -> list[Column]:
    """List the columns of the front table of images."""
    return [
        *make_name_columns(),
        Column("Passes", show_passes, PASSES_AND_CALLS.format(percent=PERCENT)),
        Column("Predicted, flat cost", show_predicted_gain, PREDICTED),
        make_speed_columns(rows, "image")[0],
    ]


def make_name_columns() -> list[Column]:
    """Make the columns of a method's name and its verdict."""
    return [
        Column("Method", show_method),
        Column(
            "Verdict", show_verdict, "does it draw from plain decoding's distribution? Below: where this was tested"
        ),
    ]


def make_speed_columns(rows: list[dict[str, Any]], item: str) -> list[Column]:
    """Make the columns of measured speed, of one `item` ("image" or "text") alone and of a batch."""
    batches = {r["batch"] for r in rows if not is_missing(r.get("batch"))}
    batch = f"Speed of a batch of {batches.pop():.0f}" if len(batches) == 1 else "Speed of a batch"
    meaning = f"on this machine, plain decoding's being 1: timed in turns, with the {PERCENT} interval, or predicted"
    return [
        Column(f"Speed of one {item}", tables.show_speed("speedup_single"), meaning),
        Column(batch, tables.show_speed("speedup"), meaning),
    ]


def make_change_column(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> Column:
    """Make the column of the change of quality from plain decoding."""

    def show(row: SummaryRow) -> Entry:
        """Show a row's change of quality; "baseline" for plain decoding."""
        return show_change(g, kind, row) if row["role"] == "method" else Entry("baseline", style="none")

    name = name_figure(kind, choose_main_figure(g, kind), is_judged_here(rows))
    return Column("Quality", show, CHANGE.format(percent=PERCENT, name=name))


def show_passes(row: SummaryRow) -> Entry:
    """Show the passes of an image with their error, beneath the tokens of each and the calls of a speculator, with its
    size relative to the target."""
    figure = estimate_of(row, "nfe")
    if figure.missing:
        return explain_missing(figure)
    error = f" ± {Z * figure.error:.0f}" if figure.error else ""
    nodes, drafted, share = (row.get(name) for name in ("nodes_per_pass", "draft_calls", "draft_share"))
    details = [] if is_missing(nodes) else [f"of {nodes:.0f} token{'s' * (round(nodes) != 1)}"]  # type: ignore[arg-type]
    if not is_missing(drafted) and drafted:
        size = "" if is_missing(share) else f", {100 * share:.0f}% of the target's size"  # type: ignore[operator]
        details.append(f"{drafted:.0f} calls of a speculator{size}")
    return Entry(f"{figure.value:.0f}{error}", "; ".join(details))


def show_predicted_gain(row: SummaryRow) -> Entry:
    """Show the predicted gain as "3.5×"; 1.0× for a row without one, as plain decoding's."""
    gain = row.get("predicted_gain", 1.0)
    return ABSENT if is_missing(gain) or is_missing(row.get("calls")) else Entry(f"{gain:.1f}×")


# --- the table of passes at equal budgets


def show_budgets(rows: pd.DataFrame) -> list[Any]:
    """Show the table of each method's passes at equal budgets of nodes, the best options of each within the budget,
    between headings; [] if fewer than half of the methods have settings for several budgets."""
    if "nodes_per_pass" not in rows:
        return []
    best = {budget: select_best_within(rows, budget) for budget in BUDGETS}
    best_rows = {budget: {(r["method"], r["claim"]): r for r in list_records(frame)} for budget, frame in best.items()}
    named = dict.fromkeys(pair for budget in reversed(BUDGETS) for pair in best_rows[budget])
    settings = {pair: {best_rows[b][pair]["key"] for b in BUDGETS if pair in best_rows[b]} for pair in named}
    if not named or 2 * sum(len(keys) > 1 for keys in settings.values()) < len(named):
        return []
    lines = [{b: best_rows[b].get(pair) for b in BUDGETS} for pair in named]
    lines = sorted(lines, key=lambda line: rank_row(find_widest(line)))
    table = show_table(lines, [  # type: ignore[arg-type]
        Column("Method", lambda line: show_method(name_plainly(find_widest(line)))),
        Column("Verdict", lambda line: show_verdict(find_widest(line))),
        *(Column(f"Within {b} nodes", partial(show_within, budget=b), WITHIN) for b in BUDGETS),
    ], AT_BUDGETS, "front")  # fmt: skip
    return [Words("At equal budgets", "heading"), table, Words("Every setting", "heading")]


def find_widest(line: Mapping[Any, Any]) -> dict[str, Any]:
    """Find the row of the largest budget in a line (summary rows by budget, None where none fits)."""
    return next(line[b] for b in reversed(BUDGETS) if line.get(b) is not None)


def name_plainly(row: SummaryRow) -> dict[str, Any]:
    """Copy a summary row, named by its method alone."""
    return {**row, "name": get_short_name(row["method"])}


def show_within(line: Mapping[Any, Any], budget: int) -> Entry:
    """Show the passes of a line's row within a budget, beneath it the predicted gain, nodes and options."""
    row = line.get(budget)
    if row is None:
        return Entry("no such setting", style="none")
    options = format_settings(parse_settings(row["options"]))
    chosen = options if is_missing(row.get("label")) else str(row["label"]).removeprefix(get_short_name(row["method"]))
    spent = f"{row['gain']:.1f}× predicted, {row['nodes_per_pass']:.0f} nodes"
    return Entry(f"{row['nfe']:.0f}", "; ".join(filter(None, (spent, chosen.strip()))))


def show_task(row: SummaryRow) -> Entry:
    """Show a text task's name, beneath it its settings in words."""
    return Entry(row["task"].capitalize(), describe_task(row["task"], parse_settings(row["settings"])))


def show_verdict(row: SummaryRow) -> Entry:
    """Show the verdict, and where it was reached, or why there is none."""
    return show_pill(row)._replace(detail=format_text(row.get("scope")) or format_text(row.get("note")))


def show_method(row: SummaryRow) -> Entry:
    """Show a row's name with its mark, beneath it what is claimed and by whom, and on hovering what the method is."""
    broken = ", which does not hold" if is_mismatch(row) and row["claim"] != "lossy" else ""
    about = describe_method(row)
    if row["role"] == "reference":
        return Entry(format_text(row.get("name"), "any"), "plain decoding", "name", about)
    return Entry(format_text(row.get("name"), "any"), state_claim(row) + broken, "name", about, find_mark(row))


def describe_method(row: SummaryRow) -> str:
    """Describe what a row's decoder is and where it is from: its module's first sentence and SOURCE; of tokens made
    elsewhere the command that made them."""
    kind, method = row["kind"], row["method"]
    if is_made(kind, method):
        command = parse_settings(row["options"])["command"]
        return f"Tokens made elsewhere: {command}" if command else "Tokens made elsewhere."
    about = " ".join(read_decoder(kind, method).doc.partition("\n\n")[0].split())
    source = declaration(kind, method).SOURCE
    sentence = re.split(r"(?<=[.:])\s", about)[0].rstrip(".:")
    return f"{sentence}. Source: {source}." if source else f"{sentence}. "


def show_fewer_calls(row: SummaryRow) -> Entry:
    """Show how many times fewer (or more) passes than plain decoding, beneath the count or share after it."""
    ratio = row["gain"]
    if not np.isfinite(ratio):
        return ABSENT
    text = f"{ratio:.2f}× fewer" if ratio >= 1 else f"{1 / ratio:.2f}× more"
    depth = row.get("depth")
    return Entry(text, f"{100 / ratio:.0f}% of plain decoding's" if is_missing(depth) else f"{depth:,.0f} an image")


def choose_main_figure(g: Gathered, kind: str) -> str:
    """Choose the figure of quality whose change is shown: that in QUALITY, but FID for published continuous models."""
    is_published = kind == "continuous" and QUALITY[kind] not in g.select_rows(kind)
    return "fid" if is_published else QUALITY[kind]


def is_judged_here(rows: Sequence[SummaryRow]) -> bool:
    """Return whether small networks trained here judge the quality, and not the published ones of a protocol."""
    return all(is_missing(row.get("protocol")) for row in rows)


def name_figure(kind: str, figure: str, judged_here: bool = False) -> str:
    """Write the name of a figure of quality; if `judged_here`, with the small network trained here that measures it."""
    name = next((figures[figure][0] for figures in metrics(kind).values() if figure in figures), figure)
    return SCENES.get(figure, name) if judged_here and kind != "anysubset" else name


def list_moves(g: Gathered, row: SummaryRow) -> list[str]:
    """List the figures of quality that differ from plain decoding's beyond chance: "perplexity 4.1 → 17.6"."""
    base = find_reference(g, row)
    judged_here = is_judged_here([row])
    result = []
    for name in (n for n in format_text(row.get("moved")).split() if n not in SAME):
        digits = max(0, count_decimals(row[f"{name}_change_se"] or 1) - 1)
        result.append(f"{name_figure(row['kind'], name, judged_here)} {base[name]:.{digits}f} → {row[name]:.{digits}f}")
    return result


def describe_quality(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> str:
    """Describe which figures of quality methods move, which were compared or lack, how small a change would show."""
    judged_here = is_judged_here(rows)
    groups = group_same(rows) if kind == "discrete" else [[r] for r in rows]
    moves = [(name_group(group, "label"), list_moves(g, group[0])) for group in groups]
    lines = [f"{label}: {', '.join(moved)}" for label, moved in moves if moved]
    changes = [list_changes(r) for r in rows]
    compared = [name_figure(kind, name, judged_here) for name in FIGURES if any(name in c for c in changes)]
    if compared:
        name = choose_main_figure(g, kind)
        reach = compute_critical_z(rows, g.settings.equality.alpha)
        error = max((row_changes[name][1] for row_changes in changes if name in row_changes), default=0.0)
        base = find_reference(g, rows[0]).get(name)
        scale = f" (of {format_number(base, 2)})" if not is_missing(base) else ""
        smallest = f"{name_figure(kind, name, judged_here)} below {format_number(reach * error, 1)}{scale}"
        small = f"; a change of {smallest} might not show" if error else ""
        others = "no other change" if lines else "no change"
        lines.append(f"{others} seen in {', '.join(compared)}{small}")
    if reasons := find_unmeasured(kind, rows):
        lines.append(f"not measured: {'; '.join(reasons)}")
    present = [name for name in FIGURES if any(not estimate_of(row, name).missing for row in rows)]
    if present and not compared:
        names = ", ".join(name_figure(kind, name, judged_here) for name in present)
        lines.append(f"not compared: {names} ({ALONE})")
    return "; ".join(lines or ["not measured"])


def find_unmeasured(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """List the figures of quality that no row has, joined by the recorded reason: "FID, recall (no network: ...)"."""
    names: dict[str, list[str]] = {}
    for name in FIGURES:
        figures = [estimate_of(row, name) for row in rows]
        if all(figure.missing for figure in figures) and (reason := next((f.why for f in figures if f.why), "")):
            names.setdefault(reason, []).append(name_figure(kind, name, is_judged_here(rows)))
    return [f"{', '.join(figures)} ({reason})" for reason, figures in names.items()]


def show_change(g: Gathered, kind: str, row: SummaryRow) -> Entry:
    """Show what moved, and the change of the main figure; grey where a change of interest might not have shown."""
    name = choose_main_figure(g, kind)
    moved = list_moves(g, row)
    if name not in list_changes(row):
        figure = estimate_of(row, name)
        lacking = explain_missing(figure if figure.missing else Estimate(why=f"not compared: {ALONE}"))
        return lacking._replace(**{"text": ", ".join(moved)} if moved else {})
    value, error = list_changes(row)[name]
    effect = None if is_missing(row.get(name)) else find_effect_of_interest(name, row[name], g.settings.equality)
    reach = Z * error
    digits = count_decimals(error) if error > 0 else 3
    ends = f"{value - reach:+.{digits}f} to {value + reach:+.{digits}f}"
    detail = f"{name_figure(kind, name, is_judged_here([row]))} {value:+.{digits}f} ({ends})"
    if not moved and effect is not None and not reach < effect:
        return grey_out(Entry("too few to tell", detail, "text"))
    return Entry(", ".join(moved) or "no change seen", detail, "text")


SCENES = {  # names of figures that small networks trained here measure (`parity.embedded`)
    "clip_score": "Scenes-CLIP", "fid": "Scenes-FID", "kid": "Scenes-KID", "precision": "Scenes-precision",
    "recall": "Scenes-recall", "right": "Scenes class accuracy", "is": "Scenes-IS",
}  # fmt: skip
PREDICTED = (
    "times faster than plain decoding, not measured: as if every pass cost the same, however many tokens it evaluates,"
    " and a speculator's call its share of the target's parameters"
)
PASSES_AND_CALLS = (
    "target passes an image, counted, with the {percent} interval; below, the tokens that a pass evaluates, and calls"
    " of a speculator, which an image waits for, too"
)
AT_BUDGETS = (
    "Passes an image with the best options of each method that keep within this many nodes a pass; beneath, the gain"
    " where a pass costs the same whatever its nodes."
)
WITHIN = "passes an image; the options that gain most within the budget"
CHANGE = (
    "figures that differ from plain decoding's beyond chance, all comparisons of this table counted; below, the change"
    " of {name} with its own {percent} interval"
)
PASSES = "passes of the target, counted: plain decoding's divided by the method's"
DEPTH = "calls of network and head that one image waits for, one after another; compared with plain decoding"
