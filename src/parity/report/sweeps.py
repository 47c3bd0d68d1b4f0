"""The figures an experiment ends in (`config.FigureSpec`), the paper's numbers beside ours; and figures whose data come from elsewhere.

Step compression is tokens per pass wherever it is measured, so the paper's points are drawn among ours. FID, CLIP-score, perplexity and the
rest depend on networks, vocabularies and prompts: the paper's stand in a panel of their own, on a scale of their own.
"""

import json
import math
from dataclasses import dataclass
from numbers import Number
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from parity.experiment.study import MEASURES, setting, shown, source
from parity.report.figures import STYLE, _half_width, _legend_below, _wrapped, styles

SHARED = ("step_compression",)  # measures that mean the same in the paper and here
COLUMNS = [
    "source",
    "label",
    "method",
    "x",
    "measure",
    "value",
    "low",
    "high",
    "across_low",
    "across_high",
    "note",
    "model",
    "table",
    "key",
]


def written(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):  # a paper that does not say which
        return f"{value[0]} or {len(value) - 1} others"
    return f"{value:g}" if isinstance(value, Number) else str(value)


def label_of(spec: dict[str, Any], by: list[str]) -> str:
    """A line's name: the values of the settings that tell lines apart."""
    values = [(name, setting(spec, name)) for name in by]
    parts = [written(v) if n in ("method", "model") else f"{n}={written(v)}" for n, v in values if v is not None]
    return " ".join(parts) or spec["method"]


def varying(specs: list[dict[str, Any]], but: list[str]) -> list[str]:
    """Options that differ between specifications, in the order of the alphabet, those in `but` left out."""
    names = sorted({k for s in specs for k in s["options"] if k not in but})
    return [n for n in names if len({json.dumps(s["options"].get(n)) for s in specs}) > 1]


def notes(specs: list[dict[str, Any]], but: list[str]) -> list[str]:
    """For each specification the options that tell it from the others, as text."""
    names = varying(specs, but)
    return [", ".join(f"{n}={written(s['options'][n])}" for n in names if n in s["options"]) for s in specs]


def specs_of(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """The specification of each row, as `study.setting` reads it."""
    return [
        {
            "method": r["method"],
            "model": r["model"],
            "options": json.loads(r["options"]),
            "sampling": json.loads(r.get("sampling") or "{}"),
        }
        for _, r in summary.iterrows()
    ]


def our_points(figure: Any, summary: pd.DataFrame) -> pd.DataFrame:
    """A row per mark: a cell's measure with its 95% interval, and the interval along x where that is a measure."""
    over_setting = figure.x not in MEASURES
    if "role" in summary and over_setting:
        summary = summary[summary["role"] != "control"]  # the same setting once more
    rows, specs = [], []
    for spec, (_, r) in zip(specs_of(summary), summary.iterrows(), strict=True):
        if shown(figure.where, spec) and (over_setting or pd.notna(r.get(figure.x))):
            rows.append(r)
            specs.append(spec)
    labels = [label_of(s, figure.by) for s in specs]
    found = []
    for label, spec, r in zip(labels, specs, rows, strict=True):
        same = [s for s, other in zip(specs, labels, strict=True) if other == label]
        note = notes(same, [figure.x, *figure.by])[same.index(spec)]
        x = setting(spec, figure.x) if over_setting else r[figure.x]
        across = (0.0, 0.0) if over_setting else _half_width(r, figure.x)
        for y in figure.y:
            if pd.isna(r.get(y)):
                continue
            down, up = _half_width(r, y)
            place = {
                "source": "ours",
                "label": label,
                "method": r["method"],
                "x": x,
                "measure": y,
                "value": r[y],
                "model": r["model"],
            }
            place |= {"low": r[y] - down, "high": r[y] + up, "note": note, "key": r.get("key")}
            found.append(place | ({} if over_setting else {"across_low": x - across[0], "across_high": x + across[1]}))
    return pd.DataFrame(
        found, columns=COLUMNS, dtype=object
    )  # settings stay what they are: no 4.0 for 4, no NaN for none


def paper_points(figure: Any, papers: pd.DataFrame) -> pd.DataFrame:
    """The same of the numbers that the figure's paper prints; no intervals, for papers print none."""
    name, tables = source(figure.paper)
    if papers.empty or not figure.paper:
        return pd.DataFrame(columns=COLUMNS, dtype=object)
    rows = papers[(papers["paper"] == name) & papers["table"].isin(tables)]
    entries, at = [], {}
    for _, r in rows.iterrows():
        options, given = json.loads(r["options"]), json.loads(r["conditions"])
        spec = {"method": r["method"], "model": r["model"], "options": options}
        spec["sampling"] = {k.removeprefix("sampling."): v for k, v in given.items() if k.startswith("sampling.")}
        place = (r["model"], r["method"], r["options"], r["conditions"])
        if r["metric"] == figure.x:
            at[place] = r["value"]
        if shown(figure.where, spec) and r["metric"] in figure.y:
            entries.append((r, spec, given, place))
    found = []
    labels = [label_of(spec, figure.by) for _, spec, _, _ in entries]
    for label, (r, spec, given, place) in zip(labels, entries, strict=True):
        same = [e[1] for e, other in zip(entries, labels, strict=True) if other == label]
        note = notes(same, [figure.x, *figure.by])[same.index(spec)]
        x = given.get(figure.x, at.get(place)) if figure.x in MEASURES else setting(spec, figure.x)
        if isinstance(x, list) or (x is None and figure.x in MEASURES):
            continue
        row = {"source": "paper", "label": label, "method": r["method"], "x": x, "measure": r["metric"]}
        found.append(row | {"value": r["value"], "note": note, "model": r["model"], "table": r["table"]})
    return pd.DataFrame(found, columns=COLUMNS, dtype=object)


def is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def places(figure: Any, values: list[Any]) -> list[Any]:
    """Settings in their order along x: numbers by size, then words as they come; a top-k of 0, which keeps every token, is the largest."""
    distinct = list({json.dumps(v): v for v in values if v is not None}.values())

    def size(value: Any) -> float:
        return math.inf if figure.x == "sampling.top_k" and value == 0 else float(value)

    return sorted((v for v in distinct if is_number(v)), key=size) + [v for v in distinct if not is_number(v)]


def with_series(figure: Any, data: pd.DataFrame, paper: str) -> pd.DataFrame:
    """The points with `series`, the name that each line has in the legend: where x is a measure, with the options its marks carry."""
    several = data.loc[data["source"] == "ours", "model"].nunique() > 1 and "model" not in figure.by
    names = []
    for _, r in data.iterrows():
        alike = data[(data["source"] == r["source"]) & (data["label"] == r["label"])]["note"]
        options = dict.fromkeys(part.partition("=")[0] for note in alike for part in note.split(", ") if part)
        name = f"{r['label']} ({', '.join(options)})" if options and figure.x in MEASURES else r["label"]
        if r["source"] == "ours":
            names.append(f"{name}, {r['model']}" if several else name)
        else:
            note = f" {r['note']}" if r["note"] and figure.x not in MEASURES else ""
            names.append(f"{name}{note}, {r['model']}, {paper}")
    return data.assign(series=names)


def along(data: pd.DataFrame, axis: list[Any] | None) -> pd.Series:
    """Where along x each mark stands, NaN for a level line. Settings are evenly spaced; where they are words, which no line joins, the
    marks of one place stand side by side."""
    if axis is None:
        return data["x"].astype(float)
    at = pd.Series([math.nan if v is None else float(axis.index(v)) for v in data["x"]], index=data.index)
    if all(map(is_number, axis)):
        return at
    for _, rows in data.groupby(at):
        labels = list(dict.fromkeys(rows["label"]))
        at[rows.index] += [
            (labels.index(n) - (len(labels) - 1) / 2) * min(0.16, 0.6 / len(labels)) for n in rows["label"]
        ]
    return at


def line(ax: Axes, rows: pd.DataFrame, axis: list[Any] | None, colour: str, marker: str, nth: int) -> None:
    """One line of marks: whole and filled if measured here, broken and hollow if a paper's.

    axis   settings along x; None where x is a measure, and marks carry the options they differ in
    nth    among a paper's lines of one colour: the later ones are tinted
    """
    ours, name = rows["source"].iloc[0] == "ours", rows["series"].iloc[0]
    style = "-" if ours else ("--", ":", "-.")[nth % 3]
    for _, r in rows[rows["at"].isna()].iterrows():
        ax.axhline(r["value"], color=colour, lw=1.2, ls=style, label=name)
        if ours and r["high"] > r["low"]:
            ax.axhspan(r["low"], r["high"], color=colour, alpha=0.12, lw=0)
    rows = rows[rows["at"].notna()].sort_values("at", kind="stable")
    if rows.empty:
        return
    fill = colour if ours else "white" if nth == 0 else blend(colour, 0.45)
    look: dict[str, Any] = {"fmt": marker, "ms": 5.5, "color": colour, "mfc": fill, "mec": colour, "elinewidth": 0.9}
    # Of marks that carry options a line is one option's, the last one's, not a walk through several.
    runs = (
        [rows]
        if axis is not None
        else [run for _, run in rows.groupby(rows["note"].str.rpartition(", ")[0], sort=False)]
    )
    for run in runs:
        joined = run["note"].nunique() > 1 if axis is None else all(map(is_number, axis))
        at, value = run["at"].to_numpy(float), run["value"].to_numpy(float)
        up = np.abs(run[["low", "high"]].to_numpy(float).T - value) if ours else None
        across = np.abs(run[["across_low", "across_high"]].to_numpy(float).T - at) if ours and axis is None else None
        ax.errorbar(
            at,
            value,
            up,
            across,
            lw=1.3,
            ls=style if joined else "none",
            capsize=0 if axis is None else 2.5,
            label=name,
            **look,
        )
        if axis is None:  # a line's ends tell which way its option grows; what stands between is in the data
            for k in sorted({0, len(run) - 1}):
                text = ", ".join(part.partition("=")[2] for part in run["note"].iloc[k].split(", "))
                beside: dict[str, Any] = {"xytext": (4, 4)} if k else {"xytext": (-4, -4), "ha": "right", "va": "top"}
                dark = blend(colour, 0.25, "black")
                ax.annotate(text, (at[k], value[k]), textcoords="offset points", fontsize=7, color=dark, **beside)


def blend(colour: str, share: float, other: str = "white") -> tuple[float, ...]:
    """A colour with a share of another."""
    return tuple((1 - share) * np.array(to_rgb(colour)) + share * np.array(to_rgb(other)))


def label_axes(ax: Axes, figure: Any, measure: str, axis: list[Any] | None, at: pd.Series) -> None:
    ax.set_ylabel(MEASURES[measure])
    ax.margins(y=0.12)
    if axis is None:
        ax.set_xlabel(MEASURES[figure.x])
        at = at.dropna().astype(float)
        ax.margins(x=0.12)
        if len(at) and at.min() > 0 and at.max() > 8 * at.min():
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        return
    every = [figure.x == "sampling.top_k" and v == 0 for v in axis]
    words = (
        {"wide": 12, "size": 9} if len(axis) < 4 or all(map(is_number, axis)) else {"wide": 7, "size": 7}
    )  # half a panel holds five
    names = [
        "all" if e else _wrapped(written(v).replace("_", " "), words["wide"]) for v, e in zip(axis, every, strict=True)
    ]
    ax.set_xticks(range(len(axis)), names, fontsize=words["size"])
    ax.set_xlim(-0.5, len(axis) - 0.5)
    ax.set_xlabel(figure.x.removeprefix("sampling.").replace("_", " "))


def layout(measures: list[str], apart: list[str]) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A figure with a panel for each measure, two a row; those `apart` have two halves, ours and the paper's."""
    if not apart:
        across = min(3, len(measures))
        deep = -(-len(measures) // across)
        drawn = Figure(figsize=(6.4 if across == 1 else 12.2, 3.3 * deep + 0.5), layout="constrained")
        grid = drawn.add_gridspec(deep, across)
        return drawn, {(y, "ours"): drawn.add_subplot(grid[k // across, k % across]) for k, y in enumerate(measures)}
    across = min(2, len(measures))
    deep = -(-len(measures) // across)
    drawn = Figure(figsize=(7.4 if across == 1 else 12.2, 3.1 * deep + 0.6), layout="constrained")
    grid = drawn.add_gridspec(deep, 2 * across)
    panels = {}
    for k, y in enumerate(measures):
        row, column = k // across, 2 * (k % across)
        panels[y, "ours"] = drawn.add_subplot(grid[row, column : column + (1 if y in apart else 2)])
        if y in apart:
            panels[y, "paper"] = drawn.add_subplot(grid[row, column + 1])
    return drawn, panels


def study(figure: Any, summary: pd.DataFrame, papers: pd.DataFrame) -> tuple[Figure, pd.DataFrame, list[str]] | None:
    """The figure, its data, and the measures of which the paper prints no numbers; None without a cell to show."""
    ours, theirs = our_points(figure, summary), paper_points(figure, papers)
    if ours.empty:
        return None
    data = with_series(figure, pd.concat([ours, theirs], ignore_index=True), source(figure.paper)[0])
    axis = None if figure.x in MEASURES else places(figure, data["x"].tolist())
    printed = {y: bool((theirs["measure"] == y).any()) for y in figure.y}
    lines = data.drop_duplicates("label")
    look = styles(lines["label"].tolist(), lines["method"].tolist())
    placed = data.assign(at=along(data, axis))
    nth = {
        name: k
        for _, g in data[data["source"] == "paper"].groupby("label")
        for k, name in enumerate(dict.fromkeys(g["series"]))
    }
    with matplotlib.rc_context(STYLE):
        drawn, panels = layout(figure.y, [y for y in figure.y if printed[y] and y not in SHARED])
        for (y, part), ax in panels.items():
            both = part == "ours" and y in SHARED
            rows = placed[(placed["measure"] == y) & ((placed["source"] == part) | both)]
            for name, group in rows.groupby("series", sort=False):
                label = group["label"].iloc[0]
                line(ax, group, axis, *look[label], nth.get(str(name), 0))
            label_axes(ax, figure, y, axis, rows["x"])
            ax.set_title(
                "printed in the paper"
                if part == "paper"
                else "measured here" + ", and printed in the paper" * (both and printed[y])
            )
            if part == "paper":
                ax.set_facecolor("#faf6ee")
        handles = {text: h for ax in drawn.axes for h, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        drawn.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=2 if len(theirs) else 4, fontsize=8
        )
    silent = [MEASURES[y] for y in figure.y if figure.paper and not (theirs["measure"] == y).any()]
    return drawn, data, silent


@dataclass(frozen=True)
class Extra:
    """A figure whose data were made elsewhere.

    data   line       x, y, and optionally low and high (95%) and label
           bars       x (words, or settings in their order), y, and optionally low and high and label
           histogram  value, and optionally label
           heatmap    row, column, value, and optionally label: a panel each
    """

    name: str  # of the CSV file: lower-case letters, digits and dashes
    title: str
    caption: str
    data: pd.DataFrame
    kind: Literal["line", "bars", "histogram", "heatmap"]
    x: str = ""  # axis labels
    y: str = ""


NEEDS = {"line": ["x", "y"], "bars": ["x", "y"], "histogram": ["value"], "heatmap": ["row", "column", "value"]}


def extra(e: Extra) -> Figure:
    """The figure of data made elsewhere; ValueError that names a column it lacks."""
    missing = [c for c in NEEDS[e.kind] if c not in e.data]
    if missing:
        raise ValueError(f"figure {e.name!r}: no column {missing[0]!r}; a {e.kind} needs {', '.join(NEEDS[e.kind])}")
    data = e.data if "label" in e.data else e.data.assign(label="")
    labels = list(dict.fromkeys(data["label"].astype(str)))
    colours = dict(zip(labels, sns.color_palette("colorblind", len(labels)).as_hex(), strict=True))
    with matplotlib.rc_context(STYLE):
        if e.kind == "heatmap":
            drawn = Figure(figsize=(min(12.2, 4.1 * len(labels) + 1), 3.8), layout="constrained")
            reach = {"vmin": data["value"].min(), "vmax": data["value"].max()}
            for ax, label in zip(drawn.subplots(1, len(labels), squeeze=False)[0], labels, strict=True):
                grid = data[data["label"].astype(str) == label].pivot(index="row", columns="column", values="value")
                sns.heatmap(
                    grid, ax=ax, cmap="cividis", square=True, rasterized=True, cbar=label == labels[-1], **reach
                )
                ax.set(title=label, xlabel=e.x, ylabel=e.y)
            return drawn
        drawn = Figure(figsize=(6.4, 3.9), layout="constrained")
        ax = drawn.subplots()
        if e.kind == "histogram":
            hue = {} if labels == [""] else {"hue": "label", "palette": colours}
            sns.histplot(data, x="value", stat="density", common_norm=False, element="step", bins=40, ax=ax, **hue)
        else:
            words = list(dict.fromkeys(data["x"])) if e.kind == "bars" else None
            for k, label in enumerate(labels):
                rows = data[data["label"].astype(str) == label]
                if words is None:
                    ax.plot(rows["x"], rows["y"], color=colours[label], lw=1.5, marker="o", ms=3.5, label=label)
                    if {"low", "high"} <= set(rows):
                        ax.fill_between(rows["x"], rows["low"], rows["high"], color=colours[label], alpha=0.18, lw=0)
                    continue
                at = np.array([words.index(v) for v in rows["x"]]) + (k - (len(labels) - 1) / 2) * 0.8 / len(labels)
                error = (
                    np.abs(rows[["low", "high"]].to_numpy(float).T - rows["y"].to_numpy(float))
                    if {"low", "high"} <= set(rows)
                    else None
                )
                ax.bar(at, rows["y"], 0.76 / len(labels), color=colours[label], yerr=error, capsize=2.5, label=label)
            if words is not None:
                ax.set_xticks(range(len(words)), [_wrapped(written(w), 12) for w in words])
            if labels != [""]:
                ax.legend()
        ax.set(xlabel=e.x, ylabel=e.y or ax.get_ylabel())
        if ax.get_legend():
            _legend_below(ax)
    return drawn
