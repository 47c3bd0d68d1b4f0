"""What a row of the summary was asked for: its settings as one flat dict, and the name that tells it from other rows.

A summary row holds them as JSON and in columns of their own: `options` of its method, `sampling`, a text task's
`settings`, and model, task, cache, batch and seed."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parity.experiment.decoder_sources import find_source, get_short_name, read_decoder
from parity.experiment.made import is_made
from parity.experiment.options import find_plain_method
from parity.experiment.options import options as complete
from parity.report.blocks import format_setting, format_settings, is_missing

SummaryRow = Mapping[str, Any]  # a row of summary.csv, by column
COLUMNS = ("model", "task", "cache", "batch")  # these columns of a summary row are settings
NAMED: dict[str, dict[str, Any]] = {  # these options together have a name
    "as released": {
        "verify": "blind", "sigma": "inverted", "inner_temperature": 42.0, "resample": "untempered", "truncate": False,
        "give_up": "zero",
    },
}  # fmt: skip
OPTION = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*)")  # matches the line of an option in a decoder's docstring


def parse_settings(text: Any) -> dict[str, Any]:
    """Read a dict from its JSON; {} where there is none."""
    return {} if is_missing(text) else json.loads(text)


def list_settings(row: SummaryRow) -> dict[str, Any]:
    """List all settings of a summary row but method, options and seed, those of sampling as "sampling.<field>"."""
    settings = {name: row[name] for name in COLUMNS if not is_missing(row.get(name))}
    settings |= parse_settings(row.get("settings"))
    return settings | {f"sampling.{k}": v for k, v in parse_settings(row.get("sampling")).items()}


def read_spec(row: SummaryRow) -> dict[str, Any]:
    """Read a summary row back as a specification for `study.read_setting`, a task's settings among `options`."""
    names = [name for name in ("kind", "method", *COLUMNS) if not is_missing(row.get(name))]
    spec = {"task_kind" if name == "task" else name: row[name] for name in names}
    options = parse_settings(row.get("settings")) | parse_settings(row["options"])
    return spec | {"options": options, "sampling": parse_settings(row.get("sampling"))}


def find_varying(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the names whose values are not the same in all mappings (None where it lacks), in order of appearance."""
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    values = {n: {json.dumps(m.get(n), sort_keys=True, default=str) for m in mappings} for n in names}
    return [n for n in names if len(values[n]) > 1]


def name_variant(kind: str, method: str, options: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Name a method by those options in `shown` that are not its defaults; options that NAMED sets go by their name."""
    if is_made(kind, method):
        return str(options["name"])
    default, name = complete(kind, method, {}), get_short_name(method)
    rest = {k: options[k] for k in shown if k in options and options[k] != default.get(k)}
    for label, chosen in NAMED.items():
        if all(options.get(k) == v for k, v in chosen.items()):
            name, rest = f"{name} {label}", {k: v for k, v in rest.items() if k not in chosen}
    return " ".join([name, *(f"{k}={format_setting(v)}" for k, v in rest.items())])


def explain_decoder(kind: str, method: str) -> tuple[str, dict[str, str]]:
    """Read a decoder's docstring in its module: the text without the lines on options, and each option's meaning."""
    code = read_decoder(kind, method).functions.get(find_source(kind, method).function)
    rest, names, meanings = list[str](), tuple[str, ...](), dict[str, str]()
    for line in ((code and ast.get_docstring(code)) or "").splitlines():
        if match := OPTION.match(line):
            names = tuple(match[1].split(", "))
            meanings |= dict.fromkeys(names, match[2])
        elif names and line.startswith("  "):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
        else:
            names = ()
            rest.append(line)
    return "\n".join(rest).strip(), meanings


def make_labels(rows: Sequence[SummaryRow]) -> list[str]:
    """Make a short name per row of one kind: its method, the options in which the method's variants differ (all where
    it is the `baseline`), and what else distinguishes rows; a number if nothing does."""
    methods = [(str(row["method"]), parse_settings(row["options"])) for row in rows]
    vary = {method: find_varying([o for m, o in methods if m == method]) for method, _ in methods}
    for row, (method, options) in zip(rows, methods, strict=True):
        if not is_missing(row.get("baseline")) and method == find_plain_method(row["kind"]):
            vary[method] = list(options)
    names = [name_variant(row["kind"], m, o, vary[m]) for row, (m, o) in zip(rows, methods, strict=True)]
    settings = [{**list_settings(row), "seed": row.get("seed"), "key": row.get("key")} for row in rows]
    for name in find_varying(settings):
        values: dict[str, set[str]] = {}  # by label the values that this setting takes
        for label, setting in zip(names, settings, strict=True):
            values.setdefault(label, set()).add(json.dumps(setting.get(name), default=str))
        form = {"model": "{1}: {0}", "task": "{0} ({1})"}.get(name, "{0}, {2}")
        described = [(s.get(name), format_settings({name: s.get(name)}, " ")) for s in settings]
        extended = [form.format(label, *words) for label, words in zip(names, described, strict=True)]
        names = [new if len(values[old]) > 1 else old for old, new in zip(names, extended, strict=True)]
    return [n if names.count(n) == 1 else f"{n} #{names[: i + 1].count(n)}" for i, n in enumerate(names)]
