"""The columns of the first tables, a kind of model each: what a method is, spends and gains, and what moves."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from parity.experiment.decoder_sources import get_short_name, read_decoder
from parity.experiment.made import is_made
from parity.experiment.options import declaration
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
    list_declared,
    name_group,
)
from parity.report.cost import BUDGETS, select_best_within
from parity.report.order import rank_row
from parity.report.settings import SummaryRow, parse_settings
from parity.report.tables import Column, show_table


class About(NamedTuple):
    """How the page calls a kind of model, and what is said of it."""

    title: str
    item: str  # what it makes
    saved: str  # what methods save
    figure: str  # of quality, whose change is shown for each method
    judge: str  # of quality, where that is a network trained here


ABOUT = {
    "discrete": About(
        "Images", "image", "passes", "clip_score",
        "small networks trained here on Scenes, not the published CLIP and Inception: Scenes-CLIP and Scenes-FID"
        " compare rows of this page, and nothing with a paper",
    ),
    "anysubset": About(
        "Text", "text", "passes", "perplexity",
        "a small network trained here on Stories: its perplexity compares rows of this page, and nothing with a paper",
    ),
    "continuous": About(
        "Continuous tokens", "image", "calls one after another", "right",
        "a small classifier trained here on Scenes: its figures compare rows of this page, and nothing with a paper",
    ),
}  # fmt: skip
SAME = ("kid", "logp_mean")  # these figures repeat what FID and perplexity say
FIGURES = tuple(name for name in EVERY_FIGURE if name not in SAME)
ALONE = "a single prompt has no error"  # the reason why a figure is known and its change is not


def find_reference(g: Gathered, row: SummaryRow) -> dict[str, Any]:
    return list_records(g.summary[g.summary["key"] == row["reference"]])[0]


# --- the entries of the front table, which the page and the docs show


def show_passes(row: SummaryRow) -> Entry:
    """Show the passes of an image, beneath the tokens of each, and calls of a speculator with its relative size."""
    figure = estimate_of(row, "nfe")
    if figure.missing:
        return tables.explain_missing(figure)
    error = f" ± {Z * figure.error:.0f}" if figure.error else ""
    nodes, calls, share = (estimate_of(row, name).value for name in ("nodes_per_pass", "draft_calls", "draft_share"))
    details = [] if nodes is None else [f"of {nodes:.0f} token{'s' * (round(nodes) != 1)}"]
    if calls:
        size = "" if share is None else f", {100 * share:.0f}% of the target's size"
        details.append(f"{calls:.0f} calls of a speculator{size}")
    return Entry(f"{figure.value:.0f}{error}", "; ".join(details))


def show_predicted_gain(row: SummaryRow) -> Entry:
    """Show the predicted gain as "3.5×"; 1.0× for a row without one, as plain decoding's."""
    gain = row.get("predicted_gain", 1.0)
    return tables.ABSENT if is_missing(gain) or is_missing(row.get("calls")) else Entry(f"{gain:.1f}×")


def show_task(row: SummaryRow) -> Entry:
    return Entry(row["task"].capitalize(), describe_task(row["task"], parse_settings(row["settings"])))


def show_verdict(row: SummaryRow) -> Entry:
    return tables.show_pill(row)._replace(detail=format_text(row.get("scope")) or format_text(row.get("note")))


def show_method(row: SummaryRow) -> Entry:
    """Show a row's name with its mark, beneath it what is claimed and by whom, and on hovering what the method is."""
    broken = ", which does not hold" if tables.is_mismatch(row) and row["claim"] != "lossy" else ""
    name, about = format_text(row.get("name"), "any"), describe_method(row)
    if row["role"] == "reference":
        return Entry(name, "plain decoding", "name", about)
    return Entry(name, tables.state_claim(row) + broken, "name", about, tables.find_mark(row))


def describe_method(row: SummaryRow) -> str:
    """Describe a row's decoder by its module's first sentence and SOURCE; tokens made elsewhere by their command."""
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
        return tables.ABSENT
    text = f"{ratio:.2f}× fewer" if ratio >= 1 else f"{1 / ratio:.2f}× more"
    depth = row.get("depth")
    return Entry(text, f"{100 / ratio:.0f}% of plain decoding's" if is_missing(depth) else f"{depth:,.0f} an image")


def choose_main_figure(g: Gathered, kind: str) -> str:
    """Choose the figure of quality whose change is shown: FID if no classifier trained here reads a model's classes."""
    figure = ABOUT[kind].figure
    return "fid" if kind == "continuous" and figure not in g.select_rows(kind) else figure


def is_judged_here(rows: Sequence[SummaryRow]) -> bool:
    """Return whether small networks trained here judge the quality, and not the published ones of a protocol."""
    return all(is_missing(row.get("protocol")) for row in rows)


def name_figure(kind: str, figure: str, judged_here: bool = False) -> str:
    """Write the name of a figure of quality; if `judged_here`, with the small network trained here that measures it."""
    name = list_declared(kind).get(figure, (figure,))[0]
    return SCENES.get(figure, name) if judged_here and kind != "anysubset" else name


def list_moves(g: Gathered, row: SummaryRow) -> list[str]:
    """List the figures of quality that differ from plain decoding's beyond chance: "perplexity 4.1 → 17.6"."""
    base = find_reference(g, row)
    judged_here = is_judged_here([row])
    result = []
    for name in (n for n in format_text(row.get("moved")).split() if n not in SAME):
        digits = max(0, tables.count_decimals(row[f"{name}_change_se"] or 1) - 1)
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
        scale = f" (of {tables.format_number(base, 2)})" if not is_missing(base) else ""
        smallest = f"{name_figure(kind, name, judged_here)} below {tables.format_number(reach * error, 1)}{scale}"
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
        lacking = tables.explain_missing(figure if figure.missing else Estimate(why=f"not compared: {ALONE}"))
        return lacking._replace(**{"text": ", ".join(moved)} if moved else {})
    value, error = list_changes(row)[name]
    effect = None if is_missing(row.get(name)) else find_effect_of_interest(name, row[name], g.settings.equality)
    reach = Z * error
    digits = tables.count_decimals(error) if error > 0 else 3
    ends = f"{value - reach:+.{digits}f} to {value + reach:+.{digits}f}"
    detail = f"{name_figure(kind, name, is_judged_here([row]))} {value:+.{digits}f} ({ends})"
    if not moved and effect is not None and not reach < effect:
        return Entry("too few to tell", detail, "few")
    return Entry(", ".join(moved) or "no change seen", detail, "text")


# --- the table of passes at equal budgets


def show_budgets(rows: pd.DataFrame) -> list[Any]:
    """Show the table of each method's passes at equal budgets of nodes, with its best options, between headings; [] if
    fewer than half of the methods have settings for several budgets."""
    if "nodes_per_pass" not in rows:
        return []
    lines: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}  # by method and claim the rows by budget
    for budget in reversed(BUDGETS):
        for row in list_records(select_best_within(rows, budget)):
            lines.setdefault((row["method"], row["claim"]), {})[budget] = row
    several = [line for line in lines.values() if len({row["key"] for row in line.values()}) > 1]
    if not lines or 2 * len(several) < len(lines):
        return []

    def show_within(budget: int, line: Mapping[int, SummaryRow]) -> Entry:
        """Show the passes of a line's row within a budget, beneath it the predicted gain, nodes and options."""
        if budget not in line:
            return Entry("no such setting", style="none")
        row = line[budget]
        options = format_settings(parse_settings(row["options"]))
        name = get_short_name(row["method"])
        chosen = options if is_missing(row.get("label")) else str(row["label"]).removeprefix(name).strip()
        spent = f"{row['gain']:.1f}× predicted, {row['nodes_per_pass']:.0f} nodes"
        return Entry(f"{row['nfe']:.0f}", "; ".join(filter(None, (spent, chosen))))

    def find_widest(line: Mapping[Any, Any]) -> dict[str, Any]:
        """Find the row of a line's largest budget, named by its method alone."""
        row = line[max(line)]
        return {**row, "name": get_short_name(row["method"])}

    columns = [
        Column("Method", lambda line: show_method(find_widest(line))),
        Column("Verdict", lambda line: show_verdict(find_widest(line))),
        *(Column(f"Within {budget} nodes", partial(show_within, budget), WITHIN) for budget in BUDGETS),
    ]
    ordered = sorted(lines.values(), key=lambda line: rank_row(find_widest(line)))
    table = show_table(ordered, columns, AT_BUDGETS, "front")  # type: ignore[arg-type]
    return [Words("At equal budgets", "heading"), table, Words("Every setting", "heading")]


# --- the columns, and their words


SCENES = {  # names of figures that small networks trained here measure (`parity.embedded`)
    "clip_score": "Scenes-CLIP", "fid": "Scenes-FID", "kid": "Scenes-KID", "precision": "Scenes-precision",
    "recall": "Scenes-recall", "right": "Scenes class accuracy", "is": "Scenes-IS",
}  # fmt: skip
PREDICTED = (
    "times faster than plain decoding, not measured: as if every pass cost the same, however many tokens it evaluates,"
    " and a speculator's call its share of the target's parameters"
)
PASSES_AND_CALLS = (
    f"target passes an image, counted, with the {PERCENT} interval; below, the tokens that a pass evaluates, and calls"
    " of a speculator, which an image waits for, too"
)
AT_BUDGETS = (
    "Passes an image with the best options of each method that keep within this many nodes a pass; beneath, the gain"
    " where a pass costs the same whatever its nodes."
)
WITHIN = "passes an image; the options that gain most within the budget"
CHANGE = (
    "figures that differ from plain decoding's beyond chance, all comparisons of this table counted; below, the change"
    f" of {{name}} with its own {PERCENT} interval"
)
PASSES = "passes of the target, counted: plain decoding's divided by the method's"
DEPTH = "calls of network and head that one image waits for, one after another; compared with plain decoding"
SPEED = f"on this machine, plain decoding's being 1: timed in turns, with the {PERCENT} interval, or predicted"
NAMES = [
    Column("Method", show_method),
    Column("Verdict", show_verdict, "does it draw from plain decoding's distribution? Below: where this was tested"),
]
IMAGE_COLUMNS = [
    *NAMES,
    Column("Passes", show_passes, PASSES_AND_CALLS),
    Column("Predicted, flat cost", show_predicted_gain, PREDICTED),
    Column("Speed of one image", tables.show_speed("speedup_single"), SPEED),
]


def make_columns(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> list[Column]:
    batches = {r["batch"] for r in rows if not is_missing(r.get("batch"))}
    batch = f"Speed of a batch of {batches.pop():.0f}" if len(batches) == 1 else "Speed of a batch"
    change = name_figure(kind, choose_main_figure(g, kind), is_judged_here(rows))
    heading, meaning = ("Calls in sequence", DEPTH) if kind == "continuous" else ("Passes", PASSES)
    return [
        *NAMES,
        *([Column("Task", show_task)] if kind == "anysubset" else []),
        Column(heading, show_fewer_calls, meaning),
        Column(f"Speed of one {ABOUT[kind].item}", tables.show_speed("speedup_single"), SPEED),
        Column(batch, tables.show_speed("speedup"), SPEED),
        Column("Quality", partial(show_change, g, kind), CHANGE.format(name=change)),
    ]
