"""What methods would gain where a pass costs what it costs elsewhere: passes, nodes and a companion's calls as one.

An image waits for calls one after another: passes of the target over n nodes, and calls of its companion (a drafter, a
draft model). The cost model (after Leviathan et al. 2023, sec. 3.3, and Chen et al. 2024, Sequoia, sec. 3.3):

    time of an image = passes x cost(nodes a pass) + calls of the companion x its share x cost(nodes a call)

in units of a pass of plain decoding, over one node. The share is of the target's parameters: a network that is bound by
reading its weights takes time in proportion to them. What a method computes beside its networks is left out: the points
that were measured have it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from parity.metrics.estimates import estimate_of
from parity.report.blocks import list_records
from parity.report.figures import GREYS, Drawing, choose_look, is_plain

BUDGETS = (16, 32, 64)  # tables compare methods within so many nodes a pass
AXIS = 32  # the x axis of the figure is the cost of a pass over so many nodes
STEPS = 61  # a line is drawn through so many points


@dataclass(frozen=True)
class PassCost:
    """The cost of a pass over n nodes, in passes over one: straight lines through points, of which the first is (1, 1);
    beyond the last point costs rise as from the first to it."""

    nodes: tuple[float, ...]  # numbers of nodes, in rising order
    costs: tuple[float, ...]
    source: str  # where the curve is from, in words

    def interpolate(self, n: float) -> float:
        """Compute the cost of a pass over n nodes, in passes over one."""
        if n <= self.nodes[-1] or len(self.nodes) == 1:
            return float(np.interp(n, self.nodes, self.costs))
        return 1 + (self.costs[-1] - 1) * (n - 1) / (self.nodes[-1] - 1)


FLAT = PassCost((1.0,), (1.0,), "an idle GPU, where a pass takes as long as reading the weights")


def make_line_cost(cost: float, nodes: int = AXIS) -> PassCost:
    """Make the curve that rises from 1 in proportion to nodes and is `cost` at a pass over `nodes`."""
    return PassCost((1.0, float(nodes)), (1.0, cost), f"{cost:g} passes for one over {nodes} nodes")


def measure_cost(rows: pd.DataFrame) -> PassCost | None:
    """Fit this machine's curve to the columns `nodes_per_pass` and `pass_cost` of summary rows: isotonic least squares,
    each row alike, from 1 at one node on. None where no row has them for more than one node."""
    points = rows.reindex(columns=["nodes_per_pass", "pass_cost"]).astype(float).dropna()
    by_nodes = points[points["nodes_per_pass"] > 1].groupby("nodes_per_pass")["pass_cost"]
    if not len(by_nodes):
        return None
    costs = np.maximum(1, isotonic_regression(by_nodes.mean().to_numpy(), weights=by_nodes.size().to_numpy()).x)
    nodes = (1.0, *by_nodes.mean().index.tolist())
    return PassCost(nodes, (1.0, *costs.tolist()), "measured by this run, one image at a time")


def read_gpu_cost(benchmark: Mapping[str, Any]) -> PassCost | None:
    """Make the curve of a GPU from the content of the file that `benchmarks/gpu.py` writes: at batch 1, compiled where
    it was, the geometric mean over networks. None where nothing was measured on a GPU."""
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
    return PassCost(tuple(map(float, costs.index)), tuple(costs.tolist()), f"measured on {name}")


def compute_image_cost(row: Mapping[str, Any], cost: PassCost) -> float:
    """Compute how many passes of plain decoding an image of a row waits for; NaN where a figure is missing.

    row   of the summary, with nfe, nodes_per_pass and, with a companion, draft_calls, draft_share and draft_nodes
    """
    passes = read_number(row, "nfe") * cost.interpolate(read_number(row, "nodes_per_pass"))
    if not (calls := read_number(row, "draft_calls", 0)):
        return passes
    return passes + calls * read_number(row, "draft_share") * cost.interpolate(read_number(row, "draft_nodes"))


def read_number(row: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    """Read a figure of a row; `default` where it is missing."""
    value = row.get(name)
    return default if value is None or value != value else float(value)


def predict_gain(row: Mapping[str, Any], plain: Mapping[str, Any], cost: PassCost) -> float:
    """Predict how many times faster than plain decoding a row is at this cost; plain: the row of plain decoding."""
    return compute_image_cost(plain, cost) / compute_image_cost(row, cost)


def find_plain_row(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Find the row of plain decoding that others are compared with: the reference, or else the control."""
    plain = rows[is_plain(rows)].sort_values("role", ascending=False, kind="stable")
    return next(iter(list_records(plain)), None)


def predict_gains(rows: pd.DataFrame, cost: PassCost) -> pd.DataFrame:
    """Add the column `gain` of `predict_gain` to summary rows of one model; NaN if they lack plain decoding."""
    plain = find_plain_row(rows)
    gain = [math.nan if plain is None else predict_gain(row, plain, cost) for row in list_records(rows)]
    return rows.assign(gain=gain)


def select_best_within(rows: pd.DataFrame, budget: float, cost: PassCost = FLAT) -> pd.DataFrame:
    """Select, for each method and claim, the row that gains most, with the column `gain`, among those with at most
    `budget` nodes a pass; the best first. A method that has none is left out."""
    gains = predict_gains(rows, cost)
    gains = gains[~is_plain(gains) & (gains["nodes_per_pass"] <= budget)].dropna(subset="gain")
    best = gains.sort_values("gain", ascending=False, kind="stable")
    return best.drop_duplicates([name for name in ("method", "claim") if name in best]).reset_index(drop=True)


def locate_pass_cost(row: Mapping[str, Any]) -> float:
    """Locate where a row's own `pass_cost` lies on the axis of the figure: the cost of a pass over `AXIS` nodes, if
    costs rise in proportion to nodes. NaN where it was not measured."""
    nodes = read_number(row, "nodes_per_pass")
    return 1 + (read_number(row, "pass_cost") - 1) * (AXIS - 1) / (nodes - 1) if nodes > 1 else math.nan


def list_points(rows: pd.DataFrame, plain: Mapping[str, Any], largest_cost: float) -> Iterator[dict[str, Any]]:
    """Yield the data of the figure: for each row the points of its predicted line, up to `largest_cost` for a pass over
    AXIS nodes, and the point that was measured, if one was."""
    for row in list_records(rows):
        fields = {"label": row["label"], "method": row["method"], "key": row.get("key")}
        for x in np.geomspace(1, largest_cost, STEPS):
            yield {**fields, "source": "predicted", "x": x, "gain": predict_gain(row, plain, make_line_cost(x))}
        single = estimate_of(row, "speedup_single")
        if not single.missing and math.isfinite(x := locate_pass_cost(row)):
            yield {**fields, "source": "measured", "x": x, "gain": single.value, "low": single.low, "high": single.high}


def draw_gains(rows: pd.DataFrame) -> Drawing | None:
    """Draw the times faster than plain decoding over what a pass over 32 nodes costs: a line for each method as
    predicted, broken if it is lossy, and the points that were measured here, one image at a time, with their intervals.
    rows: of one model, plain decoding among them; None without it, or without passes and nodes."""
    plain, methods = find_plain_row(rows), rows[~is_plain(rows)]
    methods = methods[methods.reindex(columns=["nfe", "nodes_per_pass"]).notna().all(axis=1)]
    if plain is None or methods.empty:
        return None
    largest_cost = max([8.0, *(1.3 * x for row in list_records(methods) if math.isfinite(x := locate_pass_cost(row)))])
    columns = ["label", "method", "key", "source", "x", "gain", "low", "high"]
    data = pd.DataFrame(list_points(methods, plain, largest_cost)).reindex(columns=columns).dropna(subset="gain")
    look = choose_look(rows)
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    ax = figure.subplots()
    lossy = set(methods.loc[methods["verdict_kind"] == "lossy", "label"]) if "verdict_kind" in methods else set()
    for label, points in data.groupby("label", sort=False):
        colour, marker = look[str(label)]
        line = points[points["source"] == "predicted"]
        ax.plot(line["x"], line["gain"], color=colour, lw=1.3, ls="--" if label in lossy else "-", label=label)
        for point in list_records(points[points["source"] == "measured"]):
            ends = read_number(point, "low"), read_number(point, "high")
            reach = [[point["gain"] - ends[0]], [ends[1] - point["gain"]]] if all(map(math.isfinite, ends)) else None
            mark: dict[str, Any] = {"fmt": marker, "color": colour, "ms": 5, "capsize": 2, "elinewidth": 0.9}
            ax.errorbar(point["x"], point["gain"], yerr=reach, **mark)
    ax.axhline(1, color=GREYS[0], lw=0.9, ls=":")
    ticks = [x for x in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64) if x <= largest_cost]
    ax.set(xscale="log", yscale="log", xlim=(0.97, largest_cost))
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()
    low, high = data["gain"].min() / 2, data["gain"].max() * 2
    gains = [y for y in (0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20) if low < y < high]
    ax.set_yticks(gains, [f"{y:g}" for y in gains])
    ax.set_xlabel(f"time of a pass over {AXIS} nodes, in passes over one (1: an idle GPU)")
    ax.set_ylabel("times faster than plain decoding, one image")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper")
    return figure, data
