"""Study figures: measures of cells over a setting or over another measure, the paper's numbers beside ours.

A figure is asked for by the configuration (`schema.FigureSpec`), or drawn by itself over every setting that takes three
values. Ratios that count passes or drafts mean the same in a paper and here, so the paper's points are drawn among
ours. FID, CLIP-score, perplexity and the rest depend on networks, vocabularies and prompts: the paper's stand in a
panel of their own.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parity.experiment.schema import FigureSpec
from parity.experiment.study import is_shown, setting, source
from parity.report.blocks import pairs, written
from parity.report.figures import STYLE, Drawing, Look, Named, label_points, reach_of, shade, styles, wrapped
from parity.report.settings import read, records, spec_of, variant, varying

SHARED = ("step_compression", "nfe_per_token", "perplexity_ratio")  # measures that mean the same in a paper and here
LAST = {"sampling.top_k": "all", "iterations": "each"}  # settings whose 0 stands beyond the largest value, and its name
LEVELS = ("speedup", "perplexity_ratio")  # ratios to plain decoding: a line marks it
COLUMNS = ["source", "label", "method", "x", "measure", "value", "low", "high"]
COLUMNS += ["across_low", "across_high", "note", "model", "table", "key"]
MOST, SHORT = 8, 18  # lines that are named in a panel, and letters that there is room for
Labels = Mapping[str, str]  # measure to the label of its axis


def label_of(spec: dict[str, Any], by: list[str]) -> str:
    """A line's name: the values of the settings that tell lines apart."""
    own = {n: v for n in by if (v := setting(spec, n)) is not None}
    options = [n for n in own if n in spec["options"]]
    parts = [variant(spec["kind"], spec["method"], spec["options"], options)] if "method" in own else []
    rest = {n: v for n, v in own.items() if n != "method" and not (parts and n in options)}
    parts += [written(v) if n == "model" else pairs({n: v}) for n, v in rest.items()]
    return " ".join(parts) or spec["method"]


def notes(options: list[dict[str, Any]], but: list[str]) -> list[str]:
    """For each set of options those that tell it from the others, as text."""
    names = sorted(n for n in varying(options) if n not in but)
    return [pairs({n: o[n] for n in names if n in o}) for o in options]


def our_rows(
    figure: FigureSpec, rows: pd.DataFrame, over_setting: bool
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Specification and row of each cell that a figure shows."""
    for r in records(rows):
        spec = spec_of(r)
        same = over_setting and r["role"] == "control"  # the same setting once more
        if is_shown(figure.where, spec) and not same and (over_setting or pd.notna(r.get(figure.x))):
            yield spec, r


def paper_rows(figure: FigureSpec, papers: pd.DataFrame) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The same of what the figure's paper prints: a row for each of its lines, a measure a column."""
    name, tables = source(figure.paper)
    of = ["kind", "paper", "table", "model", "method", "options", "conditions"]
    for place, lines in papers[(papers["paper"] == name) & papers["table"].isin(tables)].groupby(of, sort=False):
        row = dict(zip(of, place, strict=True))
        given = read(row["conditions"])
        sampling = {k.removeprefix("sampling."): v for k, v in given.items() if k.startswith("sampling.")}
        spec = {**row, "options": given | read(row["options"]), "sampling": sampling}
        if is_shown(figure.where, spec):
            measures = zip(lines["metric"], lines["value"], strict=True)
            # What a paper says of its device and prompts tells no marks apart.
            yield spec, {**given, **row, **dict(measures), "told": read(row["options"])}


def points(
    figure: FigureSpec, whose: str, rows: Iterable[tuple[dict[str, Any], dict[str, Any]]], known: Labels
) -> pd.DataFrame:
    """A row per mark: a measure with its 95% interval, and the interval along x where that is a measure. Settings stay
    what they are: no 4.0 for 4, no NaN for none."""
    every, result = list(rows), []
    labels = [label_of(spec, figure.by) for spec, _ in every]
    option_sets = [r.get("told", spec["options"]) for spec, r in every]
    for label, options, (spec, r) in zip(labels, option_sets, every, strict=True):
        same = [o for o, other in zip(option_sets, labels, strict=True) if other == label]
        note = notes(same, [figure.x, *figure.by])[same.index(options)]
        x: Any = r.get(figure.x) if figure.x in known else setting(spec, figure.x)
        if isinstance(x, list) or (x is None and figure.x in known):  # a paper that does not say which
            continue
        place = {"source": whose, "label": label, "method": r["method"], "x": x, "model": r["model"], "note": note}
        place |= {"key": r.get("key"), "table": r.get("table")}
        if figure.x in known:
            down, up = reach_of(r, figure.x)
            place |= {"across_low": x - down, "across_high": x + up}
        for y in (y for y in figure.y if pd.notna(r.get(y))):
            down, up = reach_of(r, y)
            result.append(place | {"measure": y, "value": r[y], "low": r[y] - down, "high": r[y] + up})
    return pd.DataFrame(result, columns=COLUMNS, dtype=object)


def is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def places(figure: FigureSpec, values: list[Any]) -> list[Any]:
    """Settings in their order along x: numbers by size (a 0 that stands for all is the largest), then words."""
    distinct = list({json.dumps(v): v for v in values if v is not None}.values())

    def size(value: Any) -> float:
        return math.inf if figure.x in LAST and value == 0 else float(value)

    return sorted((v for v in distinct if is_number(v)), key=size) + [v for v in distinct if not is_number(v)]


def with_series(figure: FigureSpec, data: pd.DataFrame, known: Labels) -> pd.DataFrame:
    """The points with `series`, the name that each line has in the legend: where x is a measure, with the options its
    marks carry."""
    several = data.loc[data["source"] == "ours", "model"].nunique() > 1 and "model" not in figure.by
    names = []
    for _, r in data.iterrows():
        alike = data[(data["source"] == r["source"]) & (data["label"] == r["label"])]["note"]
        options = dict.fromkeys(part.partition("=")[0] for note in alike for part in note.split(", ") if part)
        name = f"{r['label']} ({', '.join(options)})" if options and figure.x in known else r["label"]
        if r["source"] == "ours":
            names.append(f"{name}, {r['model']}" if several else name)
        else:
            note = f" {r['note']}" if r["note"] and figure.x not in known else ""
            names.append(f"{name}{note}, {r['model']}, {source(figure.paper)[0]}")
    return data.assign(series=names)


def along(data: pd.DataFrame, axis: list[Any] | None) -> pd.Series:
    """The x coordinate of each mark, NaN for a level line. Settings are evenly spaced; marks of settings that are
    words, which no line joins, stand side by side."""
    if axis is None:
        return data["x"].astype(float)
    at = pd.Series([math.nan if v is None else float(axis.index(v)) for v in data["x"]], index=data.index)
    if all(map(is_number, axis)):
        return at
    for _, rows in data.groupby(at):
        labels = list(dict.fromkeys(rows["label"]))
        step, middle = min(0.16, 0.6 / len(labels)), (len(labels) - 1) / 2
        at[rows.index] += [(labels.index(n) - middle) * step for n in rows["label"]]
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
    fill = colour if ours else "white" if nth == 0 else shade(colour, 0.45)
    look: dict[str, Any] = {"fmt": marker, "ms": 5.5, "color": colour, "mfc": fill, "mec": colour, "elinewidth": 0.9}
    look |= {"lw": 1.3, "capsize": 0 if axis is None else 2.5, "label": name}
    # Of marks that carry options a line is one option's, the last one's, not a walk through several.
    runs = (
        [rows] if axis is not None else [r for _, r in rows.groupby(rows["note"].str.rpartition(", ")[0], sort=False)]
    )
    for run in runs:
        joined = run["note"].nunique() > 1 if axis is None else all(map(is_number, axis))
        at, value = run["at"].to_numpy(float), run["value"].to_numpy(float)
        up = np.abs(run[["low", "high"]].to_numpy(float).T - value) if ours else None
        across = np.abs(run[["across_low", "across_high"]].to_numpy(float).T - at) if ours and axis is None else None
        ax.errorbar(at, value, up, across, ls=style if joined else "none", **look)
        if axis is None:
            name_ends(ax, run, at, value, shade(colour, -0.25))


def name_ends(ax: Axes, run: pd.DataFrame, at: np.ndarray, value: np.ndarray, colour: str) -> None:
    """The options at a line's ends tell which way it grows; what stands between is in the data."""
    for k in sorted({0, len(run) - 1}):
        text = ", ".join(part.partition("=")[2] for part in run["note"].iloc[k].split(", "))
        beside: dict[str, Any] = {"xytext": (4, 4)} if k else {"xytext": (-4, -4), "ha": "right", "va": "top"}
        ax.annotate(text, (at[k], value[k]), textcoords="offset points", fontsize=7, color=colour, **beside)


def ends(marks: pd.DataFrame, look: Look) -> list[Named]:
    """The name of each of our lines, at its last mark; none if there is only one line."""
    ours = marks[(marks["source"] == "ours") & marks["at"].notna()]
    last = [rows.sort_values("at", kind="stable").iloc[-1] for _, rows in ours.groupby("series", sort=False)]
    found = [Named(float(r["at"]), float(r["value"]), r["label"], look[r["label"]][0]) for r in last]
    return found if len(found) > 1 else []


def label_axes(ax: Axes, figure: FigureSpec, y: str, axis: list[Any] | None, at: pd.Series, known: Labels) -> None:
    ax.set_ylabel(wrapped(known.get(y, y.replace("_", " ")), 34))
    ax.margins(y=0.12)
    if y in LEVELS:
        ax.axhline(1, color="#8a94a0", lw=1, zorder=0)
    if axis is None:
        ax.set_xlabel(known[figure.x])
        at = at.dropna().astype(float)
        ax.margins(x=0.12)
        if len(at) and at.min() > 0 and at.max() > 8 * at.min():
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        return
    roomy = len(axis) < 4 or all(map(is_number, axis))  # half a panel holds five words
    text = [LAST[figure.x] if v == 0 and figure.x in LAST else written(v).replace("_", " ") for v in axis]
    names = [wrapped(t, 12 if roomy else 7) for t in text]
    ax.set_xticks(range(len(axis)), names, fontsize=9 if roomy else 7)
    ax.set_xlim(-0.5, len(axis) - 0.5)
    ax.set_xlabel(figure.x.removeprefix("sampling.").replace("_", " "))


def layout(measures: list[str], apart: list[str]) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A panel for each measure; those `apart` have two halves, ours and the paper's, and stand two a row."""
    halves, most = (2, 2) if apart else (1, 3)
    across = min(most, len(measures))
    deep = -(-len(measures) // across)
    wide, high = (7.4 if apart else 6.4) if across == 1 else 12.2, 3.1 * deep + 0.6 if apart else 3.3 * deep + 0.5
    drawn = Figure(figsize=(wide, high), layout="constrained")
    grid, panels = drawn.add_gridspec(deep, halves * across), {}
    for k, y in enumerate(measures):
        row, column = k // across, halves * (k % across)
        panels[y, "ours"] = drawn.add_subplot(grid[row, column : column + (1 if y in apart else halves)])
        if y in apart:
            panels[y, "paper"] = drawn.add_subplot(grid[row, column + 1])
    return drawn, panels


def study(figure: FigureSpec, rows: pd.DataFrame, papers: pd.DataFrame, known: Labels) -> Drawing | None:
    """A study figure of the summary rows of one kind, with its data; None without a cell to show.

    papers   published numbers of that kind
    known    measures with the labels of their axes
    """
    ours = points(figure, "ours", our_rows(figure, rows, figure.x not in known), known)
    theirs = points(figure, "paper", paper_rows(figure, papers) if figure.paper else (), known)
    if ours.empty:
        return None
    data = with_series(figure, pd.concat([ours, theirs], ignore_index=True), known)
    axis = None if figure.x in known else places(figure, data["x"].tolist())
    printed = {y: bool((theirs["measure"] == y).any()) for y in figure.y}
    placed, lines = data.assign(at=along(data, axis)), data.drop_duplicates("label")
    base = set(rows.loc[rows["role"] == "reference", "method"])
    look = styles(lines["label"].tolist(), lines["method"].isin(base).tolist(), lines["method"].tolist())
    papers_lines = data[data["source"] == "paper"].groupby("label")["series"]
    nth = {name: k for _, series in papers_lines for k, name in enumerate(dict.fromkeys(series))}
    with matplotlib.rc_context(STYLE):
        named: dict[Axes, list[Named]] = {}
        drawn, panels = layout(figure.y, [y for y in figure.y if printed[y] and y not in SHARED])
        for (y, part), ax in panels.items():
            both = part == "ours" and y in SHARED
            marks = placed[(placed["measure"] == y) & ((placed["source"] == part) | both)]
            for name, group in marks.groupby("series", sort=False):
                line(ax, group, axis, *look[group["label"].iloc[0]], nth.get(str(name), 0))
            label_axes(ax, figure, y, axis, marks["x"], known)
            named[ax] = ends(marks, look)
            among = ", and printed in the paper" * (both and printed[y])
            ax.set_title("printed in the paper" if part == "paper" else f"measured here{among}")
            if part == "paper":
                ax.set_facecolor("#faf6ee")
        short = all(len(mark.name) <= SHORT for marks_named in named.values() for mark in marks_named)
        level = bool(placed["at"].isna().any())  # a level line has no end to be named at
        if told := short and max(map(len, named.values())) <= MOST:
            drawn.draw_without_rendering()  # the places of names hang on the axes' limits
            for ax, marks_named in named.items():
                label_points(ax, marks_named)
        handles = {text: h for ax in drawn.axes for h, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        columns = 2 if len(theirs) or max(map(len, handles)) > 40 else 4
        if len(theirs) or level or not told:
            drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)
    return drawn, data


def automatic(
    rows: pd.DataFrame, swept: Mapping[str, tuple[list[str], str]], drawn: set[str]
) -> Iterator[tuple[FigureSpec, pd.DataFrame]]:
    """Figures over every setting in `swept` (to its measures and the paper's tables) that takes three values or more
    with one method, but for those in `drawn`; and the rows that each is of."""
    every = [spec_of(r) for r in records(rows)]
    for name, (measures, paper) in swept.items():
        values: dict[str, set[Any]] = {}
        for spec in every:
            values.setdefault(spec["method"], set()).add(setting(spec, name))
        chosen = [
            len(values[s["method"]] - {None}) > 2 and r != "control" for s, r in zip(every, rows["role"], strict=True)
        ]
        own, specs = rows[chosen], [s for s, c in zip(every, chosen, strict=True) if c]
        y = [m for m in measures if m in own and own[m].notna().any()]
        if name not in drawn and y:
            by = ["method", *separating_settings(specs, name)]
            yield FigureSpec(title=f"By {name.removeprefix('sampling.')}", x=name, y=y, by=by, paper=paper), own


def separating_settings(specs: list[dict[str, Any]], x: str) -> list[str]:
    """The fewest settings that distinguish the cells at one x."""

    def places(by: list[str]) -> int:
        return len({json.dumps([setting(s, n) for n in (x, "method", *by)]) for s in specs})

    flat = [{**s["options"], **{f"sampling.{k}": v for k, v in s["sampling"].items()}, **s} for s in specs]
    by: list[str] = []
    for name in varying(flat):
        if name not in ("options", "sampling") and places([*by, name]) > places(by):
            by.append(name)
    return by
