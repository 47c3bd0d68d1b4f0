"""Plots that every kind of model may need, and what all share. A drawing is a figure with the data that it shows."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from scipy import stats

from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.experiment.options import KINDS
from parity.experiment.options import methods as decoders
from parity.metrics.estimates import estimate_of
from parity.report.blocks import Plot, Words

matplotlib.use("Agg")
STYLE = {
    **sns.axes_style("whitegrid"),
    "svg.fonttype": "none",  # letters as text: a reader can search them, and a page is a third as large
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "svg.hashsalt": "parity",  # element names that do not change from build to build
    "text.parse_math": False,  # a `$` in a label is a `$`
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#8a94a0",
    "grid.color": "#e6e9ed",
    "legend.frameon": False,
    "figure.dpi": 96,
}
MARKERS = "os^DvP*X<>"
GREYS = ["#30363d", "#8a94a0"]
# Told apart with every common kind of colour blindness (after Okabe and Ito, and Tol), none too light for a line.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#aa3f86", "#b87a00", "#2e8fc9", "#332288"]
PALETTE += ["#882255", "#117733", "#8a8a1f", "#7a4fb5", "#661100", "#2f9a8a", "#cc5566"]
SHADES = (0, -0.4, 0.4)  # of variants of one method
QUALITY = {"clip_score": "CLIP-score (higher is better)", "fid": "FID (lower is better)"}
SPEED = {
    "step_compression": "step compression (tokens per pass)",
    "speedup": "speed, of plain decoding in the same job",
}
Drawing = tuple[Figure, pd.DataFrame]
Look = dict[str, tuple[str, str]]  # a label's colour and marker


def data_uri(figure: Figure) -> str:
    """The figure as an SVG data URI, the same bytes for the same data."""
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="svg", bbox_inches="tight", dpi=144, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


def plot(name: str, title: str, drawn: Drawing | None, caption: str, heading: str = "") -> Plot | Words:
    """A drawing as a block of the page; without one, that there is none."""
    if drawn is None:
        return Words(f"{title}: this experiment has no data for it.", "empty")
    return Plot(name, title, data_uri(drawn[0]), caption, drawn[1], heading)


def styles(names: Sequence[str], plain: Sequence[bool], methods: Sequence[str] = ()) -> Look:
    """Colour and marker of each row: greys for plain decoding, one hue for each other method, the same everywhere on a
    page. Variants of a method are shades of its hue with different markers.

    methods   of each row; its name, if not given
    """
    seen: dict[str, int] = {}
    chosen: Look = {}
    for name, base, method in zip(names, map(bool, plain), methods or names, strict=True):
        if base:
            n = len([look for look in chosen.values() if look[0] in GREYS])
            chosen[name] = (GREYS[n % len(GREYS)], MARKERS[n % len(MARKERS)])
            continue
        nth = seen[method] = seen.get(method, -1) + 1
        at = place_of(method, len(seen) - 1)
        marker = MARKERS[(at + 3 * (at // len(PALETTE)) + nth) % len(MARKERS)]
        at += 5 * (nth // len(SHADES))  # a fourth variant has a hue of its own
        chosen[name] = (shade(PALETTE[at % len(PALETTE)], SHADES[nth % len(SHADES)]), marker)
    return chosen


@cache
def _known() -> dict[str, int]:
    """The number of each decoder among those of its kind."""
    return {m: i for kind in KINDS for i, m in enumerate(decoders(kind))}


def place_of(method: str, otherwise: int) -> int:
    """The number of a decoder among those of its kind: what its colour hangs on."""
    return _known().get(method, otherwise)


def look_of(rows: pd.DataFrame) -> Look:
    """Colour and marker of summary rows, by label."""
    return styles(rows["label"].tolist(), is_plain(rows).tolist(), rows["method"].tolist())


def is_plain(rows: pd.DataFrame) -> pd.Series:
    """Rows of plain decoding: the reference and its control."""
    return rows["role"].isin(["reference", "control"])


def reach_of(row: Any, name: str) -> tuple[float, float]:
    """Distances from a figure down and up to the ends of its 95% interval; nought where no error was measured."""
    down, up = estimate_of(row, name).reach() or (0.0, 0.0)
    return max(0.0, down), max(0.0, up)


def noise_band(plain: pd.DataFrame, metric: str) -> tuple[float, float] | None:
    """Where another seed of plain decoding falls, 95%: its rows' mean, plus and minus 1.96 sqrt(2) standard errors of
    one.

    sqrt(2) because a point is compared with another noisy point, not with the truth.
    """
    if metric not in plain or f"{metric}_se" not in plain:
        return None
    rows = plain[[metric, f"{metric}_se"]].astype(float).dropna()
    if rows.empty:
        return None
    reach = 1.96 * math.sqrt(2 * float((rows[f"{metric}_se"] ** 2).mean()))
    return float(rows[metric].mean()) - reach, float(rows[metric].mean()) + reach


def speed_quality(rows: pd.DataFrame) -> Drawing | None:
    """Quality against speed, 95% error bars both ways; the band is what another seed of plain decoding would give."""
    ys = [m for m in QUALITY if m in rows and rows[m].notna().any()]
    xs = [m for m in SPEED if m in rows and rows[m].notna().any()]
    if not ys or not xs:
        return None
    look = look_of(rows)
    bands = {m: noise_band(rows[is_plain(rows)], m) for m in ys}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 3 * len(ys) + 0.5), layout="constrained")
        axes = figure.subplots(len(ys), len(xs), squeeze=False, sharex="col", sharey="row")
        for i, y in enumerate(ys):
            for j, x in enumerate(xs):
                cloud(axes[i, j], rows, (x, y), look, bands[y])
                if i == len(ys) - 1:
                    axes[i, j].set_xlabel(SPEED[x])
                if j == 0:
                    axes[i, j].set_ylabel(QUALITY[y])
        figure.draw_without_rendering()  # the places of names hang on the axes' limits
        for ax, (y, x) in zip(axes.flat, [(y, x) for y in ys for x in xs], strict=True):
            seen = rows[rows[x].notna() & rows[y].notna()]
            places = zip(seen[x], seen[y], seen["label"], strict=True)
            label_points(ax, [Named(a, b, name, look[name][0]) for a, b, name in places])
    ends = ("", "_se", "_low", "_high")
    columns = [f"{m}{end}" for m in (*xs, *ys) for end in ends if f"{m}{end}" in rows]
    data = rows[["label", "model", "method", "key", *columns]].copy()
    for m, band in bands.items():
        if band is not None:
            data[f"{m}_plain_band_low"], data[f"{m}_plain_band_high"] = band
    return figure, data


def cloud(ax: Axes, rows: pd.DataFrame, names: tuple[str, str], look: Look, band: tuple[float, float] | None) -> None:
    """A panel of points with their intervals."""
    x, y = names
    if band is not None:
        ax.axhspan(*band, color=GREYS[1], alpha=0.18, lw=0)
    for _, row in rows[rows[x].notna() & rows[y].notna()].iterrows():
        colour, marker = look[row["label"]]
        across, up = (np.array(reach_of(row, name))[:, None] for name in names)
        marks: dict[str, Any] = {"fmt": marker, "color": colour, "ms": 6.5, "capsize": 2, "elinewidth": 0.8}
        ax.errorbar(row[x], row[y], xerr=across, yerr=up, **marks)
    ax.margins(0.12)


def wrapped(name: str, width: int = 30) -> str:
    """A label on lines of about `width` letters."""
    lines = [""]
    for word in name.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def legend_below(ax: Axes) -> None:
    sns.move_legend(ax, "upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, title=None, fontsize=8)


def quantiles(null: pd.DataFrame, most: int, points: int) -> tuple[pd.DataFrame, list[str]]:
    """Sorted p-values of each test beside uniform quantiles, and the groups they are drawn in, those beneath first.

    More than `most` tests: those furthest from the diagonal (Kolmogorov-Smirnov) are named, the rest are one grey
    group.
    """
    tests = {str(k): np.sort(v.to_numpy(float)) for k, v in null.groupby("test", sort=True)["p_value"]}
    far = {t: stats.ks_1samp(p, stats.uniform.cdf).statistic * math.sqrt(len(p)) for t, p in tests.items()}
    named = sorted(tests) if len(tests) <= most else sorted(tests, key=lambda t: -far[t])[: most - 1]
    rest = f"the other {len(tests) - len(named)} tests"
    parts = []
    for name, p in tests.items():
        at = np.unique(np.linspace(0, len(p) - 1, min(points, len(p))).round().astype(int))
        place = {"group": name if name in named else rest, "test": name}
        parts.append(pd.DataFrame({**place, "expected": (at + 0.5) / len(p), "p_value": p[at]}))
    data = pd.concat(parts, ignore_index=True)
    return data, [g for g in (rest, *named) if (data["group"] == g).any()]


def p_value_qq(null: pd.DataFrame, most: int = 6, points: int = 200) -> Drawing | None:
    """P-values of true null hypotheses (columns test, p_value) against uniform quantiles, up to `points` of each test.

    The band is the pointwise 95% one of the smallest test.
    """
    null = null[null["p_value"].notna()] if len(null) else null
    if null.empty:
        return None
    data, order = quantiles(null, most, points)
    palette = iter(sns.color_palette("colorblind").as_hex())
    colours = {g: "#b9c0c7" if g.startswith("the other ") else next(palette) for g in order}
    n = int(null.groupby("test").size().min())
    i = np.arange(1, n + 1)
    low, high = stats.beta.ppf(0.025, i, n + 1 - i), stats.beta.ppf(0.975, i, n + 1 - i)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, 4.2), layout="constrained")
        ax = figure.subplots()
        ax.fill_between((i - 0.5) / n, low, high, color=GREYS[1], alpha=0.18, lw=0)
        ax.plot([0, 1], [0, 1], color=GREYS[1], lw=0.8)
        drawn = data.sort_values("group", key=lambda g: g.map(order.index), kind="stable")  # grey ones beneath
        look = {"hue": "group", "style": "group", "hue_order": order, "palette": colours, "s": 12, "linewidth": 0}
        sns.scatterplot(drawn, x="expected", y="p_value", ax=ax, rasterized=True, **look)
        ax.set(xlabel="uniform quantile", ylabel="observed p-value", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        sns.move_legend(ax, "center left", bbox_to_anchor=(1.02, 0.5), title=None, fontsize=8)
        legend = ax.get_legend()
        for label in legend.get_texts() if legend else ():
            label.set_text(wrapped(label.get_text(), 24))
    return figure, data


SIZE = 8  # of letters, points
PLACES = [(6, 0, "left"), (-6, 0, "right"), (0, 9, "center"), (0, -9, "center")]  # beside a point, points
PLACES += [(x * r, y * r, side) for r in (1, 2, 3) for x, side in ((9, "left"), (-9, "right")) for y in (10, -10)]


class Named(NamedTuple):
    """A point, the name beside it, and its colour."""

    x: float
    y: float
    name: str
    colour: str


def shade(colour: str, share: float) -> str:
    """A colour made lighter by a share, or darker by a negative one."""
    rgb = np.array(to_rgb(colour))
    red, green, blue = rgb * (1 + share) if share < 0 else rgb + (1 - rgb) * share
    return to_hex((red, green, blue))


def dark(colour: str) -> str:
    """A colour dark enough for letters on white."""
    return shade(colour, -0.28)


def label_points(ax: Axes, marks: Sequence[Named]) -> None:
    """Place each name near its point where it hides no other name and no point; a thin line leads to a name that is
    further away. The axes' limits must be set."""
    pixel = ax.figure.dpi / 72
    at = ax.transData.transform([(m.x, m.y) for m in marks]) if marks else np.empty((0, 2))
    inside, taken = (
        ax.get_window_extent(),
        [Bbox.from_bounds(x - 4 * pixel, y - 4 * pixel, 8 * pixel, 8 * pixel) for x, y in at],
    )
    for (x, y), mark in zip(at, marks, strict=True):
        wide, high = 0.58 * SIZE * pixel * len(mark.name), 1.25 * SIZE * pixel
        tried = []
        for dx, dy, side in PLACES:
            left = x + dx * pixel - {"left": 0, "right": wide, "center": wide / 2}[side]
            box = Bbox.from_bounds(left, y + dy * pixel - high / 2, wide, high)
            out = max(0, inside.x0 - box.x0) + max(0, box.x1 - inside.x1)
            hidden = sum(_shared(box, other) for other in taken) + high * out
            tried.append((hidden, dx, dy, side, box))
        _, dx, dy, side, box = min(tried, key=lambda t: t[0])
        taken.append(box)
        look: dict[str, Any] = {"fontsize": SIZE, "color": dark(mark.colour), "ha": side, "va": "center"}
        if abs(dx) + abs(dy) > 12:
            look["arrowprops"] = {"arrowstyle": "-", "color": mark.colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 2}
        ax.annotate(mark.name, (mark.x, mark.y), (dx, dy), textcoords="offset points", **look)


def _shared(a: Bbox, b: Bbox) -> float:
    """Area that two boxes share."""
    wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(0.0, wide) * max(0.0, high)


def label_ends(ax: Axes, ends: Sequence[Named]) -> None:
    """Each line's name at the right of the axes, at the height of its end or as near as the others leave room."""
    if not ends:
        return
    pixel, order = ax.figure.dpi / 72, sorted(ends, key=lambda e: e.y)
    wanted = np.array([ax.transData.transform((e.x, e.y))[1] for e in order])
    low, high = ax.get_window_extent().y0, ax.get_window_extent().y1
    heights = spread(wanted, 1.3 * SIZE * pixel, low, high)
    right = ax.get_window_extent().x1
    for end, height in zip(order, heights, strict=True):
        point = ax.transData.inverted().transform((right, height))
        ax.plot([end.x, point[0]], [end.y, point[1]], color=end.colour, lw=0.5, alpha=0.7)
        look: dict[str, Any] = {"fontsize": SIZE, "color": dark(end.colour), "va": "center", "annotation_clip": False}
        ax.annotate(end.name, tuple(point), (4, 0), textcoords="offset points", **look)


def spread(wanted: np.ndarray, apart: float, low: float, high: float) -> np.ndarray:
    """Ascending places as near `wanted` (ascending) as they can be, `apart` from each other and between low and high
    where there is room."""
    if len(wanted) * apart > high - low:
        apart = (high - low) / len(wanted)
    steps = apart * np.arange(len(wanted))
    free = np.clip(wanted - steps, low, high - steps[-1])
    return np.maximum.accumulate(free) + steps


@dataclass(frozen=True)
class Extra:
    """A figure with its data: of a line x, y, and optionally low and high (95%); of a histogram value; label tells
    lines or histograms apart."""

    name: str  # of the CSV file: lower-case letters, digits and dashes
    title: str
    caption: str
    data: pd.DataFrame
    kind: Literal["line", "histogram"]
    x: str = ""  # labels of the axes
    y: str = ""


NEEDS = {"line": ["x", "y"], "histogram": ["value"]}


def read_extra(file: Path) -> Extra:
    content = read_json(file)
    return Extra(**{**content, "data": pd.DataFrame(content["data"])})


def draw(e: Extra) -> Figure:
    """The figure; ParityError that names a column it lacks."""
    if missing := [c for c in NEEDS[e.kind] if c not in e.data]:
        raise ParityError(f"figure {e.name!r}: no column {missing[0]!r}; a {e.kind} needs {', '.join(NEEDS[e.kind])}")
    data = e.data.assign(label=e.data["label"].astype(str) if "label" in e.data else "")
    labels = list(dict.fromkeys(data["label"]))
    colours = dict(zip(labels, sns.color_palette("colorblind", len(labels)).as_hex(), strict=True))
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(6.4, 3.9), layout="constrained")
        ax = drawn.subplots()
        if e.kind == "histogram":
            hue: dict[str, Any] = {} if labels == [""] else {"hue": "label", "palette": colours}
            sns.histplot(data, x="value", stat="density", common_norm=False, element="step", bins=40, ax=ax, **hue)
        for label, rows in data.groupby("label", sort=False) if e.kind == "line" else ():
            ax.plot(
                rows["x"],
                rows["y"],
                color=colours[label],
                lw=1.5,
                marker=MARKERS[labels.index(str(label)) % len(MARKERS)],
                ms=3.5,
                label=label,
            )
            if {"low", "high"} <= set(rows):
                ax.fill_between(rows["x"], rows["low"], rows["high"], color=colours[label], alpha=0.18, lw=0)
        if labels != [""]:
            if ax.get_legend() is None:
                ax.legend()
            legend_below(ax)
        ax.set(xlabel=e.x, ylabel=e.y or ax.get_ylabel())
    return drawn
