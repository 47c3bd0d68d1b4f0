"""Figures whose data were made elsewhere: JSON files with the fields of `Extra`, the data as a list of rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.report.figures import MARKERS, STYLE, legend_below


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
    said = read_json(file)
    return Extra(**{**said, "data": pd.DataFrame(said["data"])})


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
