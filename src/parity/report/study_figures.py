"""Study figures: measures of cells over a setting or over another measure, the paper's numbers beside ours.

The configuration asks for a figure (`schema.FigureSpec`); one is drawn by itself over each setting that takes three
values. Ratios that count passes or drafts mean the same in a paper and here, so the paper's points are drawn among
ours. FID, CLIP-score, perplexity and the rest depend on networks, vocabularies and prompts: the paper's have a panel of
their own."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parity.experiment.schema import FigureSpec
from parity.experiment.study import is_shown, parse_source, read_setting
from parity.report.blocks import format_setting, format_settings, list_records
from parity.report.figures import Drawing, Look, Named, choose_styles, find_interval, name_points, shade, wrap_label
from parity.report.settings import find_varying, name_variant, parse_settings, read_spec

SHARED = ("step_compression", "tpf", "nfe_per_token", "perplexity_ratio")  # these mean the same in a paper and here
LAST = {"sampling.top_k": "all", "iterations": "each"}  # a 0 of these means all: it comes last, under this name
LEVELS = ("speedup", "perplexity_ratio")  # these are ratios to plain decoding, so a line marks 1
COLUMNS = ["source", "label", "method", "x", "measure", "value", "low", "high"]
COLUMNS += ["across_low", "across_high", "note", "model", "table", "key"]
Labels = Mapping[str, str]  # by measure the label of its axis
Mark = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # specification, row, options that tell marks apart


# --- the data of a figure


def list_our_rows(figure: FigureSpec, rows: pd.DataFrame, over_setting: bool) -> Iterator[Mark]:
    """Yield specification, summary row and options of each cell that `figure.where` admits and that has the measure x;
    over a setting x without controls."""
    for row in list_records(rows):
        spec = read_spec(row)
        is_repeated = over_setting and row["role"] == "control"  # a control repeats the reference's setting
        if is_shown(figure.where, spec) and not is_repeated and (over_setting or pd.notna(row.get(figure.x))):
            yield spec, row, spec["options"]


def list_paper_rows(figure: FigureSpec, papers: pd.DataFrame) -> Iterator[Mark]:
    """Yield specification, row (a measure a column) and stated options of each line of the paper's tables that
    `figure.where` admits; the specification's options include the conditions."""
    paper, tables = parse_source(figure.paper)
    columns = ["kind", "paper", "table", "model", "method", "options", "conditions"]
    printed = papers[(papers["paper"] == paper) & papers["table"].isin(tables)]
    for values, group in printed.groupby(columns, sort=False):
        row = dict(zip(columns, values, strict=True))
        options = parse_settings(row["options"])
        conditions = parse_settings(row["conditions"])
        sampling = {k.removeprefix("sampling."): v for k, v in conditions.items() if k.startswith("sampling.")}
        spec = {**row, "options": conditions | options, "sampling": sampling}
        if is_shown(figure.where, spec):
            measures = dict(zip(group["metric"], group["value"], strict=True))
            yield spec, {**conditions, **row, **measures}, options


def name_line(spec: dict[str, Any], by: list[str]) -> str:
    """Name a line of the plot by those settings in `by` that its specification has, else by its method."""
    settings = {n: v for n in by if (v := read_setting(spec, n)) is not None}
    words = []
    if "method" in settings:
        options = [n for n in settings if n in spec["options"]]
        words.append(name_variant(spec["kind"], spec["method"], spec["options"], options))
        settings = {n: v for n, v in settings.items() if n != "method" and n not in options}
    words += [format_setting(v) if n == "model" else format_settings({n: v}) for n, v in settings.items()]
    return " ".join(words) or spec["method"]


def list_points(figure: FigureSpec, source: str, rows: Iterable[Mark], labels: Labels) -> pd.DataFrame:
    """List the marks of a figure by COLUMNS, one for each row and measure of `figure.y`; as `note` the options in which
    marks of one label differ. Without a definite x there is none. Settings keep their types: no 4.0 for 4, no NaN for
    None."""
    marks = [(name_line(spec, figure.by), options, spec, row) for spec, row, options in rows]
    points = []
    for label, options, spec, row in marks:
        x: Any = row.get(figure.x) if figure.x in labels else read_setting(spec, figure.x)
        if isinstance(x, list) or (x is None and figure.x in labels):  # the paper does not say at which x
            continue
        differing = find_varying([own_options for name, own_options, *_ in marks if name == label])
        noted = [n for n in sorted(differing) if n in options and n not in (figure.x, *figure.by)]
        point = {"source": source, "label": label, "note": format_settings({n: options[n] for n in noted}), "x": x}
        point |= {name: row.get(name) for name in ("method", "model", "key", "table")}
        if figure.x in labels:
            down, up = find_interval(row, figure.x)
            point |= {"across_low": x - down, "across_high": x + up}
        for y in (y for y in figure.y if pd.notna(row.get(y))):
            down, up = find_interval(row, y)
            points.append(point | {"measure": y, "value": row[y], "low": row[y] - down, "high": row[y] + up})
    return pd.DataFrame(points, columns=COLUMNS, dtype=object)


def name_series(figure: FigureSpec, data: pd.DataFrame, labels: Labels) -> list[str]:
    """Name each mark's line as in the legend: its label, the options in which its marks differ, the model if there are
    several, and the paper."""
    several = data.loc[data["source"] == "ours", "model"].nunique() > 1 and "model" not in figure.by
    names = []
    for row in list_records(data):
        name = row["label"]
        if figure.x in labels:
            notes = data[(data["source"] == row["source"]) & (data["label"] == name)]["note"]
            options = dict.fromkeys(option.partition("=")[0] for note in notes for option in note.split(", ") if option)
            name += f" ({', '.join(options)})" if options else ""
        elif row["source"] == "paper" and row["note"]:
            name += f" {row['note']}"
        name += f", {row['model']}" if several or row["source"] == "paper" else ""
        names.append(name + (f", {parse_source(figure.paper)[0]}" if row["source"] == "paper" else ""))
    return names


# --- positions of marks along x


def is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def order_settings(figure: FigureSpec, values: list[Any]) -> list[Any]:
    """Order the distinct values of a setting along x: numbers by size (0 last where it stands for all), then words."""
    distinct = list({json.dumps(v): v for v in values if v is not None}.values())
    numbers = [v for v in distinct if is_number(v)]
    by_size = sorted(numbers, key=lambda v: math.inf if figure.x in LAST and v == 0 else float(v))
    return by_size + [v for v in distinct if not is_number(v)]


def compute_positions(data: pd.DataFrame, axis: list[Any] | None) -> pd.Series:
    """Compute the x coordinate of each mark: the place of its setting on `axis`, NaN for a mark without it; or the
    measure if axis is None. If settings are words, the marks of one setting lie side by side."""
    if axis is None:
        return data["x"].astype(float)
    x = pd.Series([math.nan if v is None else float(axis.index(v)) for v in data["x"]], index=data.index)
    if all(map(is_number, axis)):
        return x
    for _, rows in data.groupby(x):
        labels = list(dict.fromkeys(rows["label"]))
        step = min(0.16, 0.6 / len(labels))
        middle = (len(labels) - 1) / 2
        x[rows.index] += [(labels.index(n) - middle) * step for n in rows["label"]]
    return x


# --- how a figure is drawn


def draw_line(ax: Axes, rows: pd.DataFrame, axis: list[Any] | None, colour: str, marker: str, nth: int) -> None:
    """Draw one line of marks with error bars: solid and filled if measured here, broken and hollow if a paper's (the
    `nth` of its colour). Marks without a position become level lines. axis: as of `compute_positions`."""
    is_ours = rows["source"].iloc[0] == "ours"
    name = rows["series"].iloc[0]
    style = "-" if is_ours else ("--", ":", "-.")[nth % 3]
    for row in list_records(rows[rows["position"].isna()]):
        ax.axhline(row["value"], color=colour, lw=1.2, ls=style, label=name)
        if is_ours:
            ax.axhspan(row["low"], row["high"], color=colour, alpha=0.12, lw=0)
    look: dict[str, Any] = {"fmt": marker, "ms": 5.5, "color": colour, "mfc": colour if is_ours else "white"}
    look |= {"elinewidth": 0.9, "lw": 1.3, "capsize": 0 if axis is None else 2.5, "label": name}
    rows = rows[rows["position"].notna()].sort_values("position", kind="stable")
    # If marks carry options, a line joins those that differ in the last option alone.
    option = rows["note"].str.rpartition(", ")[0] if axis is None else rows["series"]
    for _, run in rows.groupby(option, sort=False):
        is_joined = run["note"].nunique() > 1 if axis is None else all(map(is_number, axis))
        x = run["position"].to_numpy(float)
        y = run["value"].to_numpy(float)
        y_error = np.abs(run[["low", "high"]].to_numpy(float).T - y) if is_ours else None
        x_error = np.abs(run[["across_low", "across_high"]].to_numpy(float).T - x) if is_ours and axis is None else None
        ax.errorbar(x, y, y_error, x_error, ls=style if is_joined else "none", **look)
        if axis is None:
            name_run_ends(ax, run["note"].tolist(), x, y, shade(colour, -0.25))


def name_run_ends(ax: Axes, notes: list[str], x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """Write the option values of the first and the last mark of a line beside them, which tells its direction."""
    for k in sorted({0, len(notes) - 1}):
        text = ", ".join(option.partition("=")[2] for option in notes[k].split(", "))
        look: dict[str, Any] = {"xytext": (4, 4)} if k else {"xytext": (-4, -4), "ha": "right", "va": "top"}
        ax.annotate(text, (x[k], y[k]), **look, textcoords="offset points", fontsize=7, color=colour)


def label_axes(ax: Axes, figure: FigureSpec, y: str, axis: list[Any] | None, x: pd.Series, labels: Labels) -> None:
    """Label both axes of a panel of the measure `y`: ticks at the settings of `axis`, or a scale of the measure
    `figure.x`, logarithmic if its values `x` span more than a factor of 8."""
    ax.set_ylabel(wrap_label(labels.get(y, y.replace("_", " ")), 34))
    ax.margins(0.12)
    if y in LEVELS:
        ax.axhline(1, color="#8a94a0", lw=1, zorder=0)
    if axis is None:
        ax.set_xlabel(labels[figure.x])
        if x.min() > 0 and x.max() > 8 * x.min():
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        return
    is_roomy = len(axis) < 4 or all(map(is_number, axis))  # five words fill half a panel
    text = [LAST[figure.x] if v == 0 and figure.x in LAST else format_setting(v).replace("_", " ") for v in axis]
    ticks = [wrap_label(t, 12 if is_roomy else 7) for t in text]
    ax.set_xticks(range(len(axis)), ticks, fontsize=9 if is_roomy else 7)
    ax.set(xlim=(-0.5, len(axis) - 0.5), xlabel=figure.x.removeprefix("sampling.").replace("_", " "))


def list_line_ends(marks: pd.DataFrame, look: Look) -> list[Named]:
    """List each of our lines' last mark with its label and colour, to be named there; [] if there is only one line."""
    ours = marks[(marks["source"] == "ours") & marks["position"].notna()].sort_values("position", kind="stable")
    ends = list_records(ours.groupby("series", sort=False).tail(1))
    return [Named(r["position"], r["value"], r["label"], look[r["label"]][0]) for r in ends] if len(ends) > 1 else []


def draw_study(figure: FigureSpec, rows: pd.DataFrame, papers: pd.DataFrame, labels: Labels) -> Drawing | None:
    """Draw a study figure from summary rows of one kind of model and published numbers, a panel a measure; None if no
    row belongs to it. labels: of every measure; a figure whose x is not among them is over a setting."""
    ours = list_points(figure, "ours", list_our_rows(figure, rows, figure.x not in labels), labels)
    theirs = list_points(figure, "paper", list_paper_rows(figure, papers) if figure.paper else (), labels)
    if ours.empty:
        return None
    data = pd.concat([ours, theirs], ignore_index=True)
    data["series"] = name_series(figure, data, labels)
    axis = None if figure.x in labels else order_settings(figure, data["x"].tolist())
    marks = data.assign(position=compute_positions(data, axis))
    lines = data.drop_duplicates("label")
    plain = set(rows.loc[rows["role"] == "reference", "method"])
    look = choose_styles(lines["label"].tolist(), lines["method"].isin(plain).tolist(), lines["method"].tolist())
    of_label = data[data["source"] == "paper"].groupby("label")["series"]
    nth = {name: k for _, series in of_label for k, name in enumerate(dict.fromkeys(series))}

    panels = list_panels(figure, set(theirs["measure"]))
    across = min(len(panels), 4 if len(panels) > len(figure.y) else 3)
    deep = -(-len(panels) // across)
    drawn = Figure(figsize=(12.2 if across > 1 else 6.4, 3.1 * deep + 0.6), layout="constrained")
    axes = drawn.subplots(deep, across, squeeze=False).ravel()
    names: dict[Axes, list[Named]] = {}
    for panel, ax in zip(panels, axes, strict=False):
        panel_marks = marks[(marks["measure"] == panel.y) & marks["source"].isin(panel.sources)]
        for name, group in panel_marks.groupby("series", sort=False):
            draw_line(ax, group, axis, *look[group["label"].iloc[0]], nth.get(str(name), 0))
        label_axes(ax, figure, panel.y, axis, panel_marks["position"], labels)
        names[ax] = list_line_ends(panel_marks, look)
        ax.set_title(panel.title)
        ax.set_facecolor(panel.background)
    for ax in axes[len(panels) :]:
        ax.axis("off")
    has_level = bool(marks["position"].isna().any())  # a level line has no end to write its name at
    is_wide = len(theirs) > 0 or max(map(len, data["series"])) > 40
    name_points(drawn, names, legend=has_level or len(theirs) > 0, columns=2 if is_wide else 4)
    return drawn, data


class Panel(NamedTuple):
    """A measure as it is drawn in one panel: ours, a paper's, or both where they mean the same."""

    y: str
    sources: tuple[str, ...]
    title: str
    background: str


def list_panels(figure: FigureSpec, printed: set[str]) -> list[Panel]:
    """List the panels of a figure: one for each measure of `figure.y`, beside it the paper's own if it prints the
    measure, unless it means the same in both (SHARED)."""
    panels = []
    for y in figure.y:
        shared = ", and printed in the paper" * (y in SHARED and y in printed)
        panels.append(Panel(y, ("ours", "paper") if y in SHARED else ("ours",), f"measured here{shared}", "white"))
        if y in printed and y not in SHARED:
            panels.append(Panel(y, ("paper",), "printed in the paper", "#faf6ee"))
    return panels


# --- figures that the configuration does not ask for


def find_sweeps(
    rows: pd.DataFrame, swept: Mapping[str, tuple[list[str], str]], shown: set[str]
) -> Iterator[tuple[FigureSpec, pd.DataFrame]]:
    """Yield a figure over each setting in `swept` but those in `shown` that takes three values or more with one method,
    and these methods' rows without controls. swept: by setting its measures, and the paper's table or ""."""
    all_specs = [read_spec(row) for row in list_records(rows)]
    for name, (measures, paper) in swept.items():
        values: dict[str, set[Any]] = {}  # for each method the values that the setting takes
        for spec in all_specs:
            values.setdefault(spec["method"], set()).add(read_setting(spec, name))
        methods = {method for method, own_values in values.items() if len(own_values - {None}) > 2}
        chosen = [s["method"] in methods and role != "control" for s, role in zip(all_specs, rows["role"], strict=True)]
        chosen_rows = rows[chosen]
        y = [m for m in measures if m in chosen_rows and chosen_rows[m].notna().any()]
        if name not in shown and y:
            specs = [s for s, is_chosen in zip(all_specs, chosen, strict=True) if is_chosen]
            by = ["method", *find_separating_settings(specs, name)]
            title = f"By {name.removeprefix('sampling.')}"
            yield FigureSpec(title=title, x=name, y=y, by=by, paper=paper), chosen_rows


def find_separating_settings(specs: list[dict[str, Any]], x: str) -> list[str]:
    """Find settings that distinguish cells of one method and `x`: in turn, each that tells further cells apart."""

    def count_places(names: list[str]) -> int:
        return len({json.dumps([read_setting(s, n) for n in (x, "method", *names)]) for s in specs})

    flat = [{**s["options"], **{f"sampling.{k}": v for k, v in s["sampling"].items()}, **s} for s in specs]
    separating: list[str] = []
    for name in find_varying(flat):
        is_setting = name not in ("options", "sampling")
        if is_setting and count_places([*separating, name]) > count_places(separating):
            separating.append(name)
    return separating
