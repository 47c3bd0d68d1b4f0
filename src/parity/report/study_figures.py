"""Study figures: measures of cells over a setting or over another measure, the paper's numbers beside ours.

The configuration asks for a figure (`schema.FigureSpec`); one is drawn by itself over each setting that takes three
values. Ratios that count passes or drafts mean the same in a paper and here, so the paper's points are drawn among
ours. FID, CLIP-score, perplexity and the rest depend on networks, vocabularies and prompts: the paper's have a panel of
their own.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parity.experiment.schema import FigureSpec
from parity.experiment.study import is_shown, parse_source, read_setting
from parity.report.blocks import pairs, records, written
from parity.report.figures import Drawing, Look, Named, interval_of, name_points, shade, styles, wrap_label
from parity.report.settings import read, spec_of, variant, varying

SHARED = ("step_compression", "nfe_per_token", "perplexity_ratio")  # measures that mean the same in a paper and here
LAST = {"sampling.top_k": "all", "iterations": "each"}  # settings whose 0 lies beyond the largest value, and its name
LEVELS = ("speedup", "perplexity_ratio")  # ratios to plain decoding: a line marks 1
COLUMNS = ["source", "label", "method", "x", "measure", "value", "low", "high"]
COLUMNS += ["across_low", "across_high", "note", "model", "table", "key"]
Labels = Mapping[str, str]  # measure to the label of its axis
SpecAndRow = tuple[dict[str, Any], dict[str, Any]]


# --- the data


def our_rows(figure: FigureSpec, rows: pd.DataFrame, over_setting: bool) -> Iterator[SpecAndRow]:
    """List specification and row of each cell that a figure shows."""
    for row in records(rows):
        spec = spec_of(row)
        repeated = over_setting and row["role"] == "control"  # the reference's setting once more
        if is_shown(figure.where, spec) and not repeated and (over_setting or pd.notna(row.get(figure.x))):
            yield spec, row


def paper_rows(figure: FigureSpec, papers: pd.DataFrame) -> Iterator[SpecAndRow]:
    """List the same of what the figure's paper prints: a row for each of its lines, a measure a column."""
    name, tables = parse_source(figure.paper)
    line = ["kind", "paper", "table", "model", "method", "options", "conditions"]
    for place, own in papers[(papers["paper"] == name) & papers["table"].isin(tables)].groupby(line, sort=False):
        row = dict(zip(line, place, strict=True))
        options, conditions = read(row["options"]), read(row["conditions"])
        sampling = {k.removeprefix("sampling."): v for k, v in conditions.items() if k.startswith("sampling.")}
        spec = {**row, "options": conditions | options, "sampling": sampling}
        if is_shown(figure.where, spec):
            measures = dict(zip(own["metric"], own["value"], strict=True))
            yield spec, {**conditions, **row, **measures, "own options": options}


def label_of(spec: dict[str, Any], by: list[str]) -> str:
    """A line's name: the values of the settings that distinguish lines."""
    own = {n: v for n in by if (v := read_setting(spec, n)) is not None}
    options = [n for n in own if n in spec["options"]]
    parts = [variant(spec["kind"], spec["method"], spec["options"], options)] if "method" in own else []
    rest = {n: v for n, v in own.items() if n != "method" and not (parts and n in options)}
    parts += [written(v) if n == "model" else pairs({n: v}) for n, v in rest.items()]
    return " ".join(parts) or spec["method"]


def points(figure: FigureSpec, whose: str, rows: Iterable[SpecAndRow], known: Labels) -> pd.DataFrame:
    """A row per mark: a measure with its interval, the interval along x where that is a measure, and as `note` the
    options in which marks of one label differ. Settings stay what they are: no 4.0 for 4, no NaN for none."""
    every: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    for spec, row in rows:
        options = row["own options"] if "own options" in row else spec["options"]  # not a paper's device and prompts
        every.append((label_of(spec, figure.by), options, spec, row))
    result = []
    for label, options, spec, row in every:
        differ = varying([other for name, other, *_ in every if name == label])
        note = pairs({n: options[n] for n in sorted(differ) if n in options and n not in (figure.x, *figure.by)})
        x: Any = row.get(figure.x) if figure.x in known else read_setting(spec, figure.x)
        if isinstance(x, list) or (x is None and figure.x in known):  # a paper that does not say which
            continue
        place = {"source": whose, "label": label, "method": row["method"], "x": x, "model": row["model"], "note": note}
        place |= {"key": row.get("key"), "table": row.get("table")}
        if figure.x in known:
            down, up = interval_of(row, figure.x)
            place |= {"across_low": x - down, "across_high": x + up}
        for y in (y for y in figure.y if pd.notna(row.get(y))):
            down, up = interval_of(row, y)
            result.append(place | {"measure": y, "value": row[y], "low": row[y] - down, "high": row[y] + up})
    return pd.DataFrame(result, columns=COLUMNS, dtype=object)


def series_of(figure: FigureSpec, data: pd.DataFrame, known: Labels) -> list[str]:
    """The name of each mark's line in the legend: where x is a measure, with the options in which its marks differ."""
    several = data.loc[data["source"] == "ours", "model"].nunique() > 1 and "model" not in figure.by
    names = []
    for row in records(data):
        name = row["label"]
        if figure.x in known:
            notes = data[(data["source"] == row["source"]) & (data["label"] == name)]["note"]
            options = dict.fromkeys(part.partition("=")[0] for note in notes for part in note.split(", ") if part)
            name += f" ({', '.join(options)})" if options else ""
        elif row["source"] == "paper" and row["note"]:
            name += f" {row['note']}"
        name += f", {row['model']}" if several or row["source"] == "paper" else ""
        names.append(name + (f", {parse_source(figure.paper)[0]}" if row["source"] == "paper" else ""))
    return names


# --- places along x


def is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def places(figure: FigureSpec, values: list[Any]) -> list[Any]:
    """Settings in their order along x: numbers by size (a 0 that stands for all is the largest), then words."""
    distinct = list({json.dumps(v): v for v in values if v is not None}.values())
    numbers = [v for v in distinct if is_number(v)]
    by_size = sorted(numbers, key=lambda v: math.inf if figure.x in LAST and v == 0 else float(v))
    return by_size + [v for v in distinct if not is_number(v)]


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


# --- the drawing


def line(ax: Axes, rows: pd.DataFrame, axis: list[Any] | None, colour: str, marker: str, nth: int) -> None:
    """One line of marks: whole and filled if measured here, broken and hollow if a paper's.

    axis   settings along x; None where x is a measure, and marks carry the options in which they differ
    nth    among a paper's lines of one colour: later ones are broken in another way
    """
    ours, name = rows["source"].iloc[0] == "ours", rows["series"].iloc[0]
    style = "-" if ours else ("--", ":", "-.")[nth % 3]
    for row in records(rows[rows["at"].isna()]):
        ax.axhline(row["value"], color=colour, lw=1.2, ls=style, label=name)
        if ours:
            ax.axhspan(row["low"], row["high"], color=colour, alpha=0.12, lw=0)
    rows = rows[rows["at"].notna()].sort_values("at", kind="stable")
    look: dict[str, Any] = {"fmt": marker, "ms": 5.5, "color": colour, "mfc": colour if ours else "white"}
    look |= {"elinewidth": 0.9, "lw": 1.3, "capsize": 0 if axis is None else 2.5, "label": name}
    # Of marks that carry options a line joins those that differ in the last option alone.
    option = rows["note"].str.rpartition(", ")[0] if axis is None else rows["series"]
    for _, run in rows.groupby(option, sort=False):
        joined = run["note"].nunique() > 1 if axis is None else all(map(is_number, axis))
        at, value = run["at"].to_numpy(float), run["value"].to_numpy(float)
        up = np.abs(run[["low", "high"]].to_numpy(float).T - value) if ours else None
        across = np.abs(run[["across_low", "across_high"]].to_numpy(float).T - at) if ours and axis is None else None
        ax.errorbar(at, value, up, across, ls=style if joined else "none", **look)
        for k in sorted({0, len(run) - 1}) if axis is None else ():  # the options at both ends tell where it leads
            text = ", ".join(part.partition("=")[2] for part in run["note"].iloc[k].split(", "))
            beside: dict[str, Any] = {"xytext": (4, 4)} if k else {"xytext": (-4, -4), "ha": "right", "va": "top"}
            beside |= {"textcoords": "offset points", "fontsize": 7, "color": shade(colour, -0.25)}
            ax.annotate(text, (at[k], value[k]), **beside)


def label_axes(ax: Axes, figure: FigureSpec, y: str, axis: list[Any] | None, at: pd.Series, known: Labels) -> None:
    ax.set_ylabel(wrap_label(known.get(y, y.replace("_", " ")), 34))
    ax.margins(0.12)
    if y in LEVELS:
        ax.axhline(1, color="#8a94a0", lw=1, zorder=0)
    if axis is None:
        ax.set_xlabel(known[figure.x])
        if at.min() > 0 and at.max() > 8 * at.min():
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        return
    roomy = len(axis) < 4 or all(map(is_number, axis))  # half a panel holds five words
    text = [LAST[figure.x] if v == 0 and figure.x in LAST else written(v).replace("_", " ") for v in axis]
    ax.set_xticks(range(len(axis)), [wrap_label(t, 12 if roomy else 7) for t in text], fontsize=9 if roomy else 7)
    ax.set(xlim=(-0.5, len(axis) - 0.5), xlabel=figure.x.removeprefix("sampling.").replace("_", " "))


def line_ends(marks: pd.DataFrame, look: Look) -> list[Named]:
    """The name of each of our lines, at its last mark; none if there is only one line."""
    ours = marks[(marks["source"] == "ours") & marks["at"].notna()].sort_values("at", kind="stable")
    last = records(ours.groupby("series", sort=False).tail(1))
    return [Named(r["at"], r["value"], r["label"], look[r["label"]][0]) for r in last] if len(last) > 1 else []


def study(figure: FigureSpec, rows: pd.DataFrame, papers: pd.DataFrame, known: Labels) -> Drawing | None:
    """Draw a study figure of the summary rows of one kind, with its data; None without a cell to show.

    papers   published numbers of that kind
    known    measures with the labels of their axes
    """
    ours = points(figure, "ours", our_rows(figure, rows, figure.x not in known), known)
    papers_points = points(figure, "paper", paper_rows(figure, papers) if figure.paper else (), known)
    if ours.empty:
        return None
    data = pd.concat([ours, papers_points], ignore_index=True)
    data["series"] = series_of(figure, data, known)
    axis = None if figure.x in known else places(figure, data["x"].tolist())
    marks, lines = data.assign(at=along(data, axis)), data.drop_duplicates("label")
    base = set(rows.loc[rows["role"] == "reference", "method"])
    look = styles(lines["label"].tolist(), lines["method"].isin(base).tolist(), lines["method"].tolist())
    of_label = data[data["source"] == "paper"].groupby("label")["series"]
    nth = {name: k for _, series in of_label for k, name in enumerate(dict.fromkeys(series))}

    printed = set(papers_points["measure"])
    parts = [(y, part) for y in figure.y for part in ("ours", "paper") if part == "ours" or y in printed - {*SHARED}]
    across = min(len(parts), 4 if len(parts) > len(figure.y) else 3)
    deep = -(-len(parts) // across)
    drawn = Figure(figsize=(12.2 if across > 1 else 6.4, 3.1 * deep + 0.6), layout="constrained")
    panels = drawn.subplots(deep, across, squeeze=False).ravel()
    names: dict[Axes, list[Named]] = {}
    for (y, part), ax in zip(parts, panels, strict=False):
        both = part == "ours" and y in SHARED
        own = marks[(marks["measure"] == y) & ((marks["source"] == part) | both)]
        for name, group in own.groupby("series", sort=False):
            line(ax, group, axis, *look[group["label"].iloc[0]], nth.get(str(name), 0))
        label_axes(ax, figure, y, axis, own["at"], known)
        names[ax] = line_ends(own, look)
        among = ", and printed in the paper" * (both and y in printed)
        ax.set_title("printed in the paper" if part == "paper" else f"measured here{among}")
        ax.set_facecolor("#faf6ee" if part == "paper" else "white")
    for ax in panels[len(parts) :]:
        ax.axis("off")
    level = bool(marks["at"].isna().any())  # a level line has no end to write its name at
    wide = len(papers_points) > 0 or max(map(len, data["series"])) > 40
    name_points(drawn, names, legend=level or len(papers_points) > 0, columns=2 if wide else 4)
    return drawn, data


# --- figures that nobody asked for


def automatic(
    rows: pd.DataFrame, swept: Mapping[str, tuple[list[str], str]], drawn: set[str]
) -> Iterator[tuple[FigureSpec, pd.DataFrame]]:
    """Draw figures over every setting in `swept` (to its measures and the paper's tables) that takes three values or
    more with one method, but for those in `drawn`; and the rows that each is of."""
    every = [spec_of(r) for r in records(rows)]
    for name, (measures, paper) in swept.items():
        values: dict[str, set[Any]] = {}
        for spec in every:
            values.setdefault(spec["method"], set()).add(read_setting(spec, name))
        many = {method for method, own in values.items() if len(own - {None}) > 2}
        chosen = [s["method"] in many and role != "control" for s, role in zip(every, rows["role"], strict=True)]
        own, specs = rows[chosen], [s for s, c in zip(every, chosen, strict=True) if c]
        y = [m for m in measures if m in own and own[m].notna().any()]
        if name not in drawn and y:
            by = ["method", *separating_settings(specs, name)]
            yield FigureSpec(title=f"By {name.removeprefix('sampling.')}", x=name, y=y, by=by, paper=paper), own


def separating_settings(specs: list[dict[str, Any]], x: str) -> list[str]:
    """Find the fewest settings that distinguish the cells at one x."""

    def count_places(by: list[str]) -> int:
        return len({json.dumps([read_setting(s, n) for n in (x, "method", *by)]) for s in specs})

    flat = [{**s["options"], **{f"sampling.{k}": v for k, v in s["sampling"].items()}, **s} for s in specs]
    by: list[str] = []
    for name in varying(flat):
        if name not in ("options", "sampling") and count_places([*by, name]) > count_places(by):
            by.append(name)
    return by
