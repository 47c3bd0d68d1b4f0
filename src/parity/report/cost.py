"""What methods would gain where a pass costs what it costs elsewhere: passes, nodes and a speculator's calls as one.

An image waits for calls one after another: passes of the target over n nodes, and calls of its speculator (a drafter, a
draft model). The cost model (after Leviathan et al. 2023, sec. 3.3, and Chen et al. 2024, Sequoia, sec. 3.3):

    time of an image = passes x cost(nodes a pass) + calls of the speculator x its share x cost(nodes a call)

in units of a pass of plain decoding, over one node. The share is of the target's parameters: a network that is bound by
reading its weights takes time in proportion to them. What a method computes beside its networks is left out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import brentq, isotonic_regression

from parity.base.files import read_json
from parity.metrics.estimates import Z, estimate_of
from parity.report.blocks import Entry, Table, is_missing, list_records
from parity.report.figures import GREYS, Drawing, Named, choose_look, is_plain, name_points
from parity.report.tables import Column, show_table

BUDGETS = (16, 32, 64)  # tables compare methods within this many nodes a pass
AXIS = 64  # the x axis of the figure is the cost of a pass over this many nodes
LARGEST = 16.0  # the axis ends at this many passes over one node
STEPS = 61  # a line is drawn through this many points
PLAIN = "plain decoding"  # the name of its row in figure and table
GPU = "gpu.json"  # `python benchmarks/gpu_passes.py` writes this file, if it is run
PALE = "#bcc3cb"  # the colour of a method that is nowhere the fastest


@dataclass(frozen=True)
class PassCost:
    """The cost of a pass over n nodes, in passes over one: straight lines through points, the first (1, 1); beyond the
    last costs rise as from the first to it."""

    nodes: tuple[float, ...]  # numbers of nodes, in rising order
    costs: tuple[float, ...]
    source: str  # the machine that the curve is of

    def interpolate(self, n: float) -> float:
        if n <= self.nodes[-1] or len(self.nodes) == 1:
            return float(np.interp(n, self.nodes, self.costs))
        return 1 + (self.costs[-1] - 1) * (n - 1) / (self.nodes[-1] - 1)


FLAT = PassCost((1.0,), (1.0,), "an idle GPU")


def make_line_cost(cost: float, nodes: int = AXIS) -> PassCost:
    """Make the curve that rises from 1 in proportion to nodes and is `cost` at a pass over `nodes`."""
    return PassCost((1.0, float(nodes)), (1.0, cost), f"{cost:g} passes for one over {nodes} nodes")


def measure_cost(rows: pd.DataFrame) -> PassCost | None:
    """Fit this machine's curve to `nodes_per_pass` and `pass_cost` by isotonic least squares; None without them."""
    points = rows.reindex(columns=["nodes_per_pass", "pass_cost"]).astype(float).dropna()
    by_nodes = points[points["nodes_per_pass"] > 1].groupby("nodes_per_pass")["pass_cost"]
    if not len(by_nodes):
        return None
    costs = np.maximum(1, isotonic_regression(by_nodes.mean().to_numpy(), weights=by_nodes.size().to_numpy()).x)
    nodes = (1.0, *by_nodes.mean().index.tolist())
    return PassCost(nodes, (1.0, *costs.tolist()), "this machine")


def read_gpu_cost(benchmark: Mapping[str, Any]) -> PassCost | None:
    """Make the curve of a GPU from the file of `benchmarks/gpu_passes.py`: at batch 1, compiled where it was, the
    geometric mean over networks. None where nothing was measured on a GPU."""
    table = pd.DataFrame(benchmark.get("forwards", []))
    if not benchmark.get("measured") or table.empty:
        return None
    table = table[table["batch"] == 1]
    table = table[table["compiled"] == table["compiled"].max()]
    seconds = table.pivot_table(index="network", columns="window", values="ms").dropna()
    if 1 not in seconds or seconds.empty:
        return None
    costs = np.exp(np.log(seconds.div(seconds[1], axis=0)).mean())
    name = benchmark.get("how", {}).get("device_name", "a GPU")
    return PassCost(tuple(map(float, costs.index)), tuple(costs.tolist()), name)


def list_machines(rows: pd.DataFrame, gpu: Path) -> list[PassCost]:
    """List the curves that were measured: this machine's, and that of the GPU in a file, if it is there."""
    costs = measure_cost(rows), read_gpu_cost(read_json(gpu)) if gpu.is_file() else None
    return [cost for cost in costs if cost is not None]


def compute_image_cost(row: Mapping[str, Any], cost: PassCost) -> float:
    """Compute how many passes of plain decoding an image of a summary row waits for; NaN where a figure is missing."""
    passes = read_number(row, "nfe") * cost.interpolate(read_number(row, "nodes_per_pass"))
    if not (calls := read_number(row, "draft_calls", 0)):
        return passes
    return passes + calls * read_number(row, "draft_share") * cost.interpolate(read_number(row, "draft_nodes"))


def read_number(row: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    return default if is_missing(row.get(name)) else float(row[name])


def predict_gain(row: Mapping[str, Any], plain: Mapping[str, Any], cost: PassCost) -> float:
    """Predict how many times faster than plain decoding a row is at this cost; plain: the row of plain decoding."""
    return compute_image_cost(plain, cost) / compute_image_cost(row, cost)


def find_plain_row(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Find the row of plain decoding that others are compared with: the reference, or else the control."""
    plain = rows[is_plain(rows)].sort_values("role", ascending=False, kind="stable")
    return next(iter(list_records(plain)), None)


def predict_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the column `gain`, of `predict_gain` at FLAT cost, to summary rows of a model; NaN without plain decoding."""
    plain = find_plain_row(rows)
    gain = [math.nan if plain is None else predict_gain(row, plain, FLAT) for row in list_records(rows)]
    return rows.assign(gain=gain)


def select_best_within(rows: pd.DataFrame, budget: float) -> pd.DataFrame:
    """Select for each method and claim the row of most `gain` with at most `budget` nodes a pass, the best first."""
    gains = predict_gains(rows)
    gains = gains[~is_plain(gains) & (gains["nodes_per_pass"] <= budget)].dropna(subset="gain")
    best = gains.sort_values("gain", ascending=False, kind="stable")
    return best.drop_duplicates([name for name in ("method", "claim") if name in best]).reset_index(drop=True)


class Near(NamedTuple):
    """Costs for which a method may be as fast as the fastest one: the times differ by less than their error."""

    low: float
    high: float
    name: str


class Stretch(NamedTuple):
    """Costs of a pass over AXIS nodes for which one method is the fastest."""

    low: float
    high: float
    name: str  # the fastest method's label
    row: dict[str, Any]  # and its row
    gains: list[float]  # predicted times faster than plain decoding, at the low end and at the high end
    near: list[Near]  # other methods that may be as fast on a part of the stretch


def compute_excess(row: Mapping[str, Any], best: Mapping[str, Any], x: float) -> float:
    """Compute by how much more than the error of their difference the time of a row exceeds that of the best one where
    a pass over AXIS nodes costs x: below 0 if the row may be as fast."""
    time, least = (compute_image_cost(r, make_line_cost(x)) for r in (row, best))
    error, least_error = (Z * (estimate_of(r, "nfe").error or 0) / read_number(r, "nfe") for r in (row, best))
    return time - least - math.hypot(time * error, least * least_error)


def list_near(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], low: float, high: float) -> list[Near]:
    """List which rows may be as fast as the best one for which costs from `low` to `high`, the widest range first; of
    each method that of the widest range."""
    found = []
    for row in rows:
        excess = partial(compute_excess, row, best)
        # the ratio of two times only rises or only falls with the cost: near is one range, which reaches an end
        match excess(low) < 0, excess(high) < 0:
            case True, True:
                ends = low, high
            case True, False:
                ends = low, brentq(excess, low, high)
            case False, True:
                ends = brentq(excess, low, high), high
            case _:
                continue
        found.append((row["method"], Near(*ends, name_row(row))))
    widest: dict[str, Near] = {}
    for method, near in sorted(found, key=lambda one: one[1].low - one[1].high):
        widest.setdefault(method, near)
    return list(widest.values())


def is_lossless(row: Mapping[str, Any]) -> bool:
    return row.get("claim") == "lossless" and row.get("verdict_kind") != "lossy"


def name_row(row: Mapping[str, Any]) -> str:
    """Write the label of a method's row, or that it is plain decoding."""
    return str(row["label"]) if row["role"] == "method" else PLAIN


def find_fastest(rows: pd.DataFrame) -> list[Stretch]:
    """Find which lossless method, or plain decoding, is the fastest for each cost of a pass over AXIS nodes up to
    LARGEST. Times are lines over that cost; the fastest are their lower envelope. [] without passes of plain
    decoding."""
    plain, methods = find_plain_row(rows), list_records(rows[~is_plain(rows)])
    if plain is None or not math.isfinite(compute_image_cost(plain, FLAT)):
        return []
    candidates = [plain, *(row for row in methods if is_lossless(row))]
    starts = [compute_image_cost(row, FLAT) for row in candidates]
    rises = [compute_image_cost(row, make_line_cost(2)) - start for row, start in zip(candidates, starts, strict=True)]
    lines = [line for line in zip(starts, rises, candidates, strict=True) if math.isfinite(line[1])]
    stretches: list[Stretch] = []
    low, fastest = 1.0, min(lines, key=lambda line: line[:2])
    while low < LARGEST:
        start, rise, best = fastest
        crossings = {i: 1 + (line[0] - start) / (rise - line[1]) for i, line in enumerate(lines) if line[1] < rise}
        following = min(crossings, key=lambda i: (crossings[i], lines[i][1]), default=None)
        high = LARGEST if following is None else min(crossings[following], LARGEST)
        ends = [make_line_cost(x) for x in (low, high)]
        gains = [predict_gain(best, plain, cost) for cost in ends]
        near = list_near([row for _, _, row in lines if row["method"] != best["method"]], best, low, high)
        stretches.append(Stretch(low, high, name_row(best), best, gains, near))
        low, fastest = high, fastest if following is None else lines[following]
    return stretches


def format_range(low: float, high: float) -> str:
    """Write a range with two digits, "1 to 9.2"; one number where both ends are written alike."""
    return " to ".join(dict.fromkeys(f"{x:.2g}" for x in (low, high)))


def format_near(stretch: Stretch, form: str = "{}") -> str:
    """List what may be as fast on a stretch: "mtj, spec from 7.6, sjd up to 3". form: of a method's name."""
    texts = []
    for low, high, name in stretch.near:
        limits = f" from {low:.2g}" * (low > stretch.low) + f" up to {high:.2g}" * (high < stretch.high)
        texts.append((name if name == PLAIN else form.format(name)) + limits)
    return ", ".join(texts) or "none"


def list_points(rows: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]) -> pd.DataFrame:
    """List the points of the figure's lines: for each row the gain over x, the cost of a pass over AXIS nodes."""
    costs = [(x, make_line_cost(x)) for x in np.geomspace(1, LARGEST, STEPS)]
    fields = ("label", "method", "key")
    points = [
        {**{name: row.get(name) for name in fields}, "x": x, "gain": predict_gain(row, plain, cost)}
        for row in rows for x, cost in costs
    ]  # fmt: skip
    return pd.DataFrame(points, columns=[*fields, "x", "gain"]).dropna(subset="gain")


def draw_gains(rows: pd.DataFrame, machines: Sequence[PassCost] = ()) -> Drawing | None:
    """Draw the predicted times faster than plain decoding over what a pass over AXIS nodes costs: in colour, and thick
    where it is the fastest, a lossless method; grey what may be as fast; dotted `machines`. The data are of all
    methods."""
    plain, methods = find_plain_row(rows), list_records(rows[~is_plain(rows)])
    data = list_points(methods, plain) if plain else pd.DataFrame()
    if plain is None or data.empty:
        return None
    stretches = find_fastest(rows)
    colours = {str(s.row["label"]): choose_look(rows)[s.row["label"]][0] for s in stretches}
    near = {rival.name for s in stretches for rival in s.near}
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    ax = figure.subplots()
    ax.axhline(1, color=GREYS[0], lw=0.9)
    for label, points in data.groupby("label", sort=False):
        colour = colours.get(str(label), PALE)
        if label in colours or label in near:
            ax.plot(points["x"], points["gain"], color=colour, lw=1, zorder=2 + (label in colours))
    names = []
    for s in stretches:
        colour = colours[str(s.row["label"])]
        costs = np.geomspace(s.low, s.high, STEPS)
        gains = [predict_gain(s.row, plain, make_line_cost(x)) for x in costs]
        ax.plot(costs, gains, color=colour, lw=3, solid_capstyle="butt", zorder=4)
        names.append(Named(costs[STEPS // 4], gains[STEPS // 4], s.name, colour, 8))
    for machine in machines:
        x = machine.interpolate(AXIS)
        ax.axvline(x, color=GREYS[0], lw=0.9, ls=":")
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        label = f"{machine.source}, {x:.1f}"
        ax.annotate(label, (x, 0.02), (3, 0), size=8, rotation=90, annotation_clip=True, **place)
    largest_gain = 1.25 * max(1, data["gain"].max())
    ax.set(xscale="log", yscale="log", xlim=(1, LARGEST), ylim=(0.5, largest_gain))
    ticks = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()
    levels = [y for y in (0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20) if y < largest_gain]
    ax.set_yticks(levels, [f"{y:g}" for y in levels])
    ax.set_xlabel(f"time of a pass over {AXIS} nodes, in passes over one (1: an idle GPU)")
    ax.set_ylabel("predicted times faster than plain decoding")
    name_points(figure, {ax: names})
    return figure, data


def show_fastest(rows: pd.DataFrame) -> list[Table]:
    columns = [
        Column(f"A pass over {AXIS} tokens", lambda r: Entry(f"{format_range(r['low'], r['high'])} passes over one")),
        Column("Fastest lossless", lambda r: Entry(r["name"], style="name")),
        Column("Predicted", lambda r: Entry(f"{format_range(*r['gains'])} times plain decoding")),
        Column("May be as fast", lambda r: Entry(r["rivals"], style="text")),
    ]
    lines = [
        {**s._asdict(), "method": s.row["method"], "role": s.row["role"], "rivals": format_near(s)}
        for s in find_fastest(rows)
    ]
    return [show_table(lines, columns, FASTEST)] if lines else []


BY_COST = (
    f"Predicted times faster than plain decoding, by what a pass over {AXIS} tokens costs where one over a single token"
    f" costs 1: find your machine on this axis. The cost of a pass over n tokens is taken as 1 + (c - 1)(n - 1) /"
    f" {AXIS - 1}; a speculator's call costs its share of the target's parameters. Thick: the fastest lossless method."
    " Grey: methods that may be as fast, which the table below names. Dotted: machines that were measured; where no"
    " pass over this many tokens was, their cost is extended in a line."
)
FASTEST = (
    "The fastest lossless method, or plain decoding, by the cost of a pass, predicted as in the figure. What a method"
    " computes beside its networks is left out, and trees compute more: a GPU may have another order"
    " (docs/results/gpu.md). May be as fast: methods whose counts of passes differ by less than their error, and for"
    " which costs."
)
