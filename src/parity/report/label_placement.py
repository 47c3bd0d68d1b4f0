"""Names beside what they name: at the points of a cloud, at the ends of lines. No legend has to be looked up, and what
colour alone would tell apart is said in words."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.transforms import Bbox

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
    """Each name where it hides no other name and no point, as near its point as there is room; a thin line leads to
    one that stands away. The axes' limits must be set."""
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
