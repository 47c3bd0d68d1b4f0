"""The figures an experiment ends in: the names they may use, and what is wrong with one.

A *setting* is what a cell was asked for: its method, model, batch, task, "sampling.<field>", or one of its method's
options. A *measure* is a figure that a metric declares. A figure shows measures over a setting or over another measure,
one line for each combination of the settings in `by`.
"""

import json
from functools import cache
from typing import Any

from parity.base.errors import ConfigError
from parity.experiment.cells import wrap_in_list
from parity.experiment.module_metadata import modules, read_constant, require

SPEEDS = {  # measures that `parity.tune.speed` makes, label, unit and direction as a metric declares them
    "speedup": ("speed, times plain decoding's", "", "higher"),
    "speedup_predicted": ("the same, predicted", "", "higher"),
    "speedup_single": ("speed at batch 1, times plain decoding's", "", "higher"),
    "speedup_single_predicted": ("the same, predicted", "", "higher"),
}
SPEEDS_OF_IMAGES = {  # and of image tokens alone
    "speedup_compiled": ("plain decoding's speed at batch 1 with compiled passes, times its own", "", "higher"),
    "pass_cost": ("time of a pass, times plain decoding's", "", "lower"),
    "step_cost": ("time of a step, times its pass'", "", "lower"),
    "tokens_per_second_single": ("tokens per second at batch 1", "measured", "higher"),
}
DIRECTIONS = {"higher": " (higher is better)", "lower": " (lower is better)", "none": ""}
SHARED = ("method", "model", "task_kind", "task", "cache", "batch")  # settings that are no options of a method


@cache
def metrics(kind: str) -> dict[str, dict[str, tuple[str, str, str]]]:
    """List the measures of each metric of a kind of model: by module, then by name, (label, unit, direction).

    A module of metrics/ is a metric if it declares KINDS or MEASURES. Raises ConfigError for one that lacks the rest,
    or a direction.
    """
    measures_of = {}
    for module in modules("metrics"):
        if not any(read_constant("metrics", module, name) for name in ("KINDS", "MEASURES")):
            continue  # a module that declares neither is a helper of metrics
        declaration = require("metrics", module, ("KINDS", "MEASURES"), ("measure",))
        for name, value in declaration["MEASURES"].items():
            if len(value) != 3 or value[2] not in DIRECTIONS:
                raise ConfigError(
                    f"src/parity/metrics/{module}.py: MEASURES[{name!r}] = {value!r}: no direction;"
                    f" allowed: (label, unit, direction), direction one of {', '.join(map(repr, DIRECTIONS))}"
                )
        if kind in declaration["KINDS"]:
            measures_of[module] = declaration["MEASURES"]
    return measures_of


def list_speeds(kind: str) -> dict[str, tuple[str, str, str]]:
    """List the measures of a kind of model that `parity.tune.speed` makes."""
    return SPEEDS | (SPEEDS_OF_IMAGES if kind == "discrete" else {})


def list_measures(kind: str) -> dict[str, str]:
    """List the labels of all measures of a kind of model, by name: those that its metrics make, and speeds."""
    measures = (*metrics(kind).values(), list_speeds(kind))
    return {name: format_label(*value) for figures in measures for name, value in figures.items()}


def format_label(text: str, unit: str, direction: str) -> str:
    """Format a measure's label: its text, its unit, if any, and which direction is better, if one is."""
    return text + (f", {unit}" if unit else "") + DIRECTIONS[direction]


def read_setting(spec: dict[str, Any], name: str) -> Any:
    """Read the value of a setting from a cell's specification; None where its method, or its kind, has none."""
    if name.startswith("sampling."):
        return spec.get("sampling", {}).get(name.removeprefix("sampling."))
    return spec[name] if name in SHARED and name in spec else spec["options"].get(name)


def list_settings(specs: list[dict[str, Any]]) -> list[str]:
    """List the names of the settings of cells: those of SHARED and of sampling by the first cell, options by all."""
    options = {k for s in specs for k in s["options"]}
    sampling = [f"sampling.{k}" for k in specs[0].get("sampling", {})]
    return [*(n for n in SHARED if n in specs[0]), *sampling, *sorted(options - set(SHARED))]


def is_shown(conditions: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Return whether a figure limited by `conditions` (setting: allowed value or values) shows a cell. A cell that does
    not have the setting is a point of reference and stays."""
    pairs = [(read_setting(spec, name), wrap_in_list(allowed)) for name, allowed in conditions.items()]
    return all(have is None or have in allowed for have, allowed in pairs)


def parse_source(paper: str) -> tuple[str, list[str]]:
    """Split a text such as "Teng et al. 2024 (SJD), Fig. 8, Table 9" into the paper and its tables and figures."""
    name, *tables = (piece.strip() for piece in paper.split(","))
    return name, tables


def find_problem(figure: Any, specs: list[dict[str, Any]], measures: dict[str, str]) -> tuple[str, str] | None:
    """Find what is wrong with a figure (a FigureSpec) of the cells `specs` of methods and references: the key with its
    value, and what is allowed; None if nothing is. `measures`: the labels of the kind's measures by name."""
    if not specs:
        return f"title = {figure.title!r}", "a figure of what is decoded; this section decodes nothing"
    named = list_settings(specs)
    allowed, measured = f"a setting of these methods ({', '.join(named)})", f"a measure ({', '.join(measures)})"
    for key in ("by", "where"):
        for name in getattr(figure, key):
            if name not in named:
                return f"{key} = {name!r}", allowed
    if figure.x not in named and figure.x not in measures:
        return f"x = {figure.x!r}", f"{allowed} or {measured}"
    for name in figure.y:
        if name not in measures:
            return f"y = {name!r}", measured
    for name, condition in figure.where.items():
        had = {json.dumps(read_setting(s, name)) for s in specs}
        for value in wrap_in_list(condition):
            if json.dumps(value) not in had:
                values = ", ".join(sorted(had - {"null"}))
                return f"where.{name} = {value!r}", f"a value that a variant has ({values})"
    return None if figure.x in measures else find_coincidence(figure, specs, named)


def find_coincidence(figure: Any, specs: list[dict[str, Any]], named: list[str]) -> tuple[str, str] | None:
    """Find whether two cells would be plotted at one point of one line, which the figure's `by` must distinguish: `by`
    with its value and what is allowed; None if no two would be. `named`: the names of settings."""
    points = set()
    for s in (s for s in specs if is_shown(figure.where, s)):
        point = json.dumps([read_setting(s, name) for name in (figure.x, *figure.by)])
        if point in points:
            free = [n for n in named if n not in (figure.x, *figure.by)]
            varying = [n for n in free if len({json.dumps(read_setting(t, n)) for t in specs}) > 1]
            allowed = f"settings that tell the variants of one {figure.x} apart (or `where`): {', '.join(varying)}"
            return f"by = {figure.by}", allowed
        points.add(point)
    return None


def find_unknown_source(paper: str, published: list[dict[str, str]]) -> str | None:
    """Find whether a figure's `paper`, such as "Teng et al. 2024 (SJD), Table 9", names a paper or a table without rows
    in workflow/published: what is allowed, None if all have rows. The paper's figures may have none."""
    name, tables_named = parse_source(paper)
    names = sorted({row["paper"] for row in published})
    if name not in names:
        return f"a paper of workflow/published ({', '.join(names)}), then its tables and figures"
    tables = {row["table"] for row in published if row["paper"] == name}
    missing = [p for p in tables_named if p.startswith("Table") and p not in tables]
    return f"a table of {name} ({', '.join(sorted(t for t in tables if t.startswith('Table')))})" if missing else None
