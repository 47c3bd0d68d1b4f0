"""What all figures share, and the plots that every kind of model may need. A drawing is a figure with its data."""

import base64
import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from parity_certify.page import COLOURS

from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.experiment.options import KINDS
from parity.experiment.options import methods as decoders
from parity.metrics.estimates import ENDS, Z, estimate_of
from parity.report.blocks import Plot, Words, format_text, is_missing, list_records
from parity.report.tables import doubt_speed

matplotlib.use("Agg")
matplotlib.rcParams.update({
    **sns.axes_style("whitegrid"),
    "svg.fonttype": "none",  # text stays text: a reader can search it, and the page is a third as large
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "svg.hashsalt": "parity",  # the names of SVG elements are the same in every build
    "text.parse_math": False,  # a `$` in a label is a `$`
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#8a94a0",
    "grid.color": "#e6e9ed",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 96,
})  # fmt: skip
MARKERS = "os^DvP*X<>"
GREYS = ["#30363d", "#8a94a0"]
# These colours differ also to the colour-blind (after Okabe and Ito, and Tol), and none is too light for a line.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#aa3f86", "#b87a00", "#2e8fc9", "#332288"]
PALETTE += ["#882255", "#117733", "#8a8a1f", "#7a4fb5", "#661100", "#2f9a8a", "#cc5566"]
SHADES = (0, -0.4, 0.4)  # variants of one method differ by these shades
QUALITY = {
    "clip_score": ("CLIP-score", "higher is better"), "fid": ("FID", "lower is better"),
    "perplexity": ("perplexity", ""),
}  # fmt: skip
Drawing = tuple[Figure, pd.DataFrame]
Look = dict[str, tuple[str, str]]  # by label its colour and marker


def plot(name: str, title: str, drawn: Drawing | None, caption: str, heading: str = "") -> Plot | Words:
    """Make a block of the page from a drawing; if that is None, the sentence that there are no data for it."""
    if drawn is None:
        return Words(f"{title}: this experiment has no data for it.", "empty")
    return Plot(name, title, encode_figure(drawn[0]), caption, drawn[1], heading)


def encode_figure(figure: Figure) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", dpi=144, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


# --- colours and names


def choose_styles(names: Sequence[str], plain: Sequence[bool], methods: Sequence[str]) -> Look:
    """Choose colour and marker by name, the same everywhere: greys where `plain`, a hue for each other method, and for
    its variants shades of it with different markers."""
    variants: dict[str, int] = {}
    chosen: Look = {}
    for name, base, method in zip(names, plain, methods, strict=True):
        if base:
            nth = sum(colour in GREYS for colour, _ in chosen.values())
            chosen[name] = (GREYS[nth % len(GREYS)], MARKERS[nth % len(MARKERS)])
            continue
        nth = variants[method] = variants.get(method, -1) + 1
        number = number_decoders().get(method, len(variants) - 1)
        marker = MARKERS[(number + 3 * (number // len(PALETTE)) + nth) % len(MARKERS)]
        hue = PALETTE[(number + 5 * (nth // len(SHADES))) % len(PALETTE)]  # a fourth variant gets another hue
        chosen[name] = (shade(hue, SHADES[nth % len(SHADES)]), marker)
    return chosen


@cache
def number_decoders() -> dict[str, int]:
    """Map each decoder to its number among those of its kind, which decides its colour."""
    return {method: number for kind in KINDS for number, method in enumerate(decoders(kind))}


def choose_look(rows: pd.DataFrame) -> Look:
    return choose_styles(rows["label"].tolist(), is_plain(rows).tolist(), rows["method"].tolist())


def is_plain(rows: pd.DataFrame) -> pd.Series:
    return rows["role"].isin(["reference", "control"])


def shade(colour: str, share: float) -> str:
    rgb = np.array(to_rgb(colour))
    return to_hex(tuple(rgb * (1 + share) if share < 0 else rgb + (1 - rgb) * share))


def wrap_label(name: str, width: int = 30) -> str:
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1))  # of a mark
CROWDED = 30  # marks


class Named(NamedTuple):
    """A point, the name beside it, its colour, and what is drawn there."""

    x: float
    y: float
    name: str
    colour: str
    radius: float = 3.0  # of the mark, in points


def name_points(figure: Figure, points: Mapping[Axes, Sequence[Named]], legend: bool = False, columns: int = 4) -> None:
    """Write each name beside its point, or at the end of a line, clear of other names and marks. If `legend`, a legend
    below lists all that is drawn, in `columns`."""
    figure.draw_without_rendering()  # so that the limits of the axes are final
    for ax, named in ((ax, named) for ax, named in points.items() if named):
        x, y = zip(*(point[:2] for point in named), strict=True)
        radii = np.array([[[point.radius * figure.dpi / 72]] for point in named])
        edges = ax.transData.transform(np.c_[x, y])[:, None] + radii * SIDES  # [points, sides, 2]
        edges = ax.transData.inverted().transform(edges.reshape(-1, 2)).reshape(edges.shape)
        texts = [
            ax.text(
                right[0], right[1], point.name, size=8, color=shade(point.colour, -0.28), va="center", in_layout=False
            )
            for right, point in zip(edges[:, 0], named, strict=True)
        ]
        lines = {"target_x": x, "target_y": y, "arrowprops": {"arrowstyle": "-", "lw": 0.5, "color": GREYS[1]}}
        adjust_text(
            texts, *edges.reshape(-1, 2).T, ax=ax, avoid_self=False, force_text=(0.3, 0.6), iter_lim=500, **lines
        )
    handles = {text: h for ax in figure.axes for h, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    if legend and handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


# --- figures of what methods gain


NOT_DECIDED = "not decided"
VERDICTS = {str(kind): colour for kind, colour in COLOURS.items() if kind != "inconclusive"} | {NOT_DECIDED: GREYS[1]}
SPEED_AXES = {  # by column of the x axis its label and ticks
    "nfe": ("target passes an image", (10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 256, 400, 800)),
    "distance": (
        "total variation from the model's distribution; at most, unless lossy", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)
    ),
}  # fmt: skip


def split_by_verdict(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    kinds = rows["verdict_kind"].where(rows["verdict_kind"].isin(VERDICTS), NOT_DECIDED)
    for kind, colour in VERDICTS.items():
        if (kinds == kind).any():
            yield kind, colour, rows[kinds == kind]


def draw_gain_bars(rows: pd.DataFrame, count: str) -> Drawing:
    """Draw `gain` (times fewer `count` than plain decoding) as a bar a method in the colour of its verdict."""
    data = rows.sort_values("gain", ascending=False, kind="stable").reset_index(drop=True)
    data = data.reindex(columns=["label", "method", "key", "gain", "gain_se", "verdict_kind", "pill"])
    figure = Figure(figsize=(6.2, 0.9 + 0.27 * len(data)), layout="constrained")
    ax = figure.subplots()
    for kind, colour, bars in split_by_verdict(data):
        reach = Z * bars["gain_se"].fillna(0)
        ax.barh(bars.index, bars["gain"], 0.7, xerr=reach, color=colour, label=kind, ecolor=GREYS[0])
        for y, gain, error, pill in zip(bars.index, bars["gain"], reach, bars["pill"], strict=True):
            tv = f", {pill.partition(', ')[2]}" if "TV" in format_text(pill) else ""
            ax.annotate(f"{gain:.1f}×{tv}", (gain + error, y), (4, 0), textcoords="offset points", va="center", size=8)
    ax.axvline(1, color=GREYS[0], lw=0.9, ls="--")
    ax.set_yticks(range(len(data)), data["label"].map(wrap_label), size=8, linespacing=0.9)
    ax.grid(visible=False, axis="y")
    ax.set(xlim=(0, 1.45 * max(1, data["gain"].max())), ylim=(len(data) - 0.4, -0.6))
    ax.set_xlabel(f"times fewer {count} than plain decoding (broken line)")
    figure.legend(loc="outside lower center", ncols=4)
    return figure, data


def draw_speed_by_distance(rows: pd.DataFrame) -> Drawing | None:
    """Draw the measured speed of one image against the total variation from the model's distribution: its bound if
    certified or consistent, else what was measured on the small model where it is surest."""
    bound, measured = (rows.reindex(columns=[name])[name].astype(float) for name in ("tv_bound", "tv"))
    has_bound = rows["verdict_kind"].isin(["certified", "consistent"])
    distance = bound.where(has_bound, measured.fillna(bound)).clip(lower=1e-3)
    return draw_speed(rows.assign(distance=distance), "distance")


def draw_speed(rows: pd.DataFrame, x: str) -> Drawing | None:
    """Draw the measured speed of one image against the column `x` of SPEED_AXES: a named mark a method in the colour of
    its verdict, larger for more nodes a pass, pale where the speed tells little; of more than CROWDED, the fastest of
    each method is named. None without a speed."""
    columns = ["label", "method", "key", "role", x, "nodes_per_pass", "verdict_kind", "load", "machine"]
    data = rows.reindex(columns=[*columns, *(f"speedup_single{end}" for end in ENDS)])
    data = data.dropna(subset=[x, "speedup_single"]).reset_index(drop=True)
    methods = data[~is_plain(data)]
    if methods.empty:
        return None
    figure = Figure(figsize=(6.6, 5.4), layout="constrained")
    ax = figure.subplots()
    names: dict[Any, Named] = {}
    for kind, colour, marked in split_by_verdict(methods):
        ax.scatter([], [], color=colour, label=kind)
        for i, row in zip(marked.index, list_records(marked), strict=True):
            y, (down, up) = row["speedup_single"], find_interval(row, "speedup_single")
            area = 12 + 3 * (0 if is_missing(row["nodes_per_pass"]) else float(row["nodes_per_pass"]))
            look: dict[str, Any] = {"color": colour, "alpha": 0.3 if doubt_speed(row, "speedup_single") else 1.0}
            ax.errorbar(row[x], y, yerr=[[down], [up]], fmt="none", elinewidth=0.9, capsize=2, **look)
            ax.scatter(row[x], y, s=area, lw=0, **look)
            names[i] = Named(row[x], y, row["label"], colour, math.sqrt(area) / 2)
    ax.axhline(1, color=GREYS[0], lw=0.9, ls="--")
    label, ticks = SPEED_AXES[x]
    ax.set(xscale="log", xlabel=label, ylabel="speed of one image, times plain decoding's")
    top = 1.5 * max(1.0, float(methods["speedup_single"].max()))  # a busy machine's interval goes on past the frame
    ax.set_ylim(0, min(ax.get_ylim()[1], top))
    ax.minorticks_off()
    if x == "nfe":
        limits = 0.8 * methods[x].min(), 1.15 * data[x].max()
        shown = [tick for tick in ticks if tick <= 1.2 * data[x].max()]
    else:
        shown = [tick for tick in ticks if tick >= data[x].min() / 3]
        limits = min(shown), 1
    ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
    ax.set_xlim(*limits)
    if len(methods) > CROWDED:
        methods = methods.sort_values("speedup_single").drop_duplicates("method", keep="last")
    name_points(figure, {ax: [names[i] for i in methods.index]}, legend=True)
    return figure, data


# --- figures of quality


def find_interval(row: Any, name: str) -> tuple[float, float]:
    """Find the distances from a row's figure down and up to the ends of its interval; 0 where no error was measured."""
    down, up = estimate_of(row, name).reach() or (0.0, 0.0)
    return max(0.0, down), max(0.0, up)


def compute_noise_band(plain: pd.DataFrame, metric: str) -> tuple[float, float] | None:
    """Compute where another seed of plain decoding falls: the mean, plus and minus sqrt(2) times one's reach, because
    both points are noisy. None without an error."""
    rows = plain.reindex(columns=[metric, f"{metric}_se"]).astype(float).dropna()
    if rows.empty:
        return None
    mean, reach = float(rows[metric].mean()), Z * math.sqrt(2 * float((rows[f"{metric}_se"] ** 2).mean()))
    return mean - reach, mean + reach


def draw_quality(rows: pd.DataFrame, headings: Mapping[str, str]) -> Drawing | None:
    """Draw each figure in QUALITY that the rows have, a panel each and a line for each row; the band is where another
    seed of plain decoding falls. None without such figures. headings: other names of figures."""
    names = [m for m in QUALITY if m in rows and rows[m].notna().any()]
    if not names:
        return None
    data = rows[["label", "method", "key", *(f"{m}{end}" for m in names for end in ENDS if f"{m}{end}" in rows)]].copy()
    figure = Figure(figsize=(2.4 + 2.7 * len(names), 0.8 + 0.25 * len(rows)), layout="constrained")
    for ax, m in zip(figure.subplots(1, len(names), squeeze=False, sharey=True).flat, names, strict=True):
        if (band := compute_noise_band(rows[is_plain(rows)], m)) is not None:
            ax.axvspan(*band, color=GREYS[1], alpha=0.18, lw=0)
            data[f"{m}_plain_band_low"], data[f"{m}_plain_band_high"] = band
        for y, row in enumerate(list_records(rows)):
            if not is_missing(row[m]):
                reach = [[end] for end in find_interval(row, m)]
                verdict = format_text(row.get("verdict_kind")) if row["role"] == "method" else ""
                colour = VERDICTS.get(verdict, GREYS[0])
                ax.errorbar(row[m], y, xerr=reach, fmt="o", color=colour, ms=4.5, capsize=2, elinewidth=0.9)
        ax.set_yticks(range(len(rows)), rows["label"])
        name, better = QUALITY[m]
        name = headings.get(m, name)
        ax.set(xlabel=f"{name} ({better})" if better else name, ylim=(len(rows) - 0.5, -0.5))
    return figure, data


# --- figures whose data were made elsewhere


@dataclass(frozen=True)
class Extra:
    """A figure with its data: of a line x, y, perhaps low and high; of a histogram value; perhaps `label`."""

    name: str  # the name of its CSV file: lower-case letters, digits and dashes
    title: str
    caption: str
    data: pd.DataFrame
    kind: Literal["line", "histogram"]
    x: str = ""  # x and y are the labels of the axes
    y: str = ""


NEEDS = {"line": ["x", "y"], "histogram": ["value"]}


def read_extra(file: Path) -> Extra:
    """Read a figure made elsewhere from JSON, whose fields are those of `Extra`."""
    content = read_json(file)
    return Extra(**{**content, "data": pd.DataFrame(content["data"])})


def draw_extra(e: Extra) -> Figure:
    """Draw the lines or histograms of a figure made elsewhere. Raises ParityError that names a column it lacks."""
    if lacking := [c for c in NEEDS[e.kind] if c not in e.data]:
        raise ParityError(f"figure {e.name!r}: no column {lacking[0]!r}; a {e.kind} needs {', '.join(NEEDS[e.kind])}")
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    ax = figure.subplots()
    data = e.data.assign(label=e.data["label"].astype(str) if "label" in e.data else "")
    labels = data["label"].unique()
    colours = dict(zip(labels, sns.color_palette("colorblind", len(labels)).as_hex(), strict=True))
    several = len(labels) > 1
    if e.kind == "histogram":
        look: dict[str, Any] = {"stat": "density", "common_norm": False, "element": "step", "bins": 40}
        sns.histplot(data, x="value", hue="label", palette=colours, legend=several, ax=ax, **look)
    for label, rows in data.groupby("label", sort=False) if e.kind == "line" else ():
        ax.plot(rows["x"], rows["y"], color=colours[label], lw=1.5, marker="o", ms=3.5, label=label)
        if {"low", "high"} <= set(rows):
            ax.fill_between(rows["x"], rows["low"], rows["high"], color=colours[label], alpha=0.18, lw=0)
    if several:
        if e.kind == "line":
            ax.legend()
        sns.move_legend(ax, "upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, title=None)
    ax.set(xlabel=e.x, ylabel=e.y or ax.get_ylabel())
    return figure
