"""What a row of the summary was asked for: its settings as one flat dict, and the name that tells it from other rows.

A summary row holds them as JSON and in columns of their own: `options` of its method, `sampling`, a text task's
`settings`, and model, task, cache, batch and seed.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parity.experiment.module_metadata import read_outline
from parity.experiment.options import options as complete
from parity.report.blocks import missing, pairs, written

Row = Mapping[str, Any]
OWN = ("model", "task", "cache", "batch")  # columns that are settings
NAMED: dict[str, dict[str, Any]] = {  # options that go together under a name
    "as released": {
        "verify": "blind", "sigma": "inverted", "inner_temperature": 42.0, "resample": "untempered", "truncate": False,
        "give_up": "zero",
    },
}  # fmt: skip
OPTION = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*)")  # a line of a decoder's docstring


def read(text: Any) -> dict[str, Any]:
    """Read a dict from its JSON; {} where there is none."""
    return {} if missing(text) else json.loads(text)


def settings_of(row: Row) -> dict[str, Any]:
    """List all settings but the method, its options and the seed: model, task, its settings, "sampling.<field>", cache
    and batch."""
    own = {name: row[name] for name in OWN if not missing(row.get(name))}
    return own | read(row.get("settings")) | {f"sampling.{k}": v for k, v in read(row.get("sampling")).items()}


def spec_of(row: Row) -> dict[str, Any]:
    """Read the row as `experiment.study.setting` reads a specification; a task's settings are among the options."""
    own = {"task_kind" if n == "task" else n: row[n] for n in ("kind", "method", *OWN) if not missing(row.get(n))}
    return own | {"options": read(row.get("settings")) | read(row["options"]), "sampling": read(row.get("sampling"))}


def varying(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values are not the same in all of `every`, in the order in which they come."""
    names = dict.fromkeys(name for one in every for name in one)
    return [n for n in names if len({json.dumps(one.get(n), sort_keys=True, default=str) for one in every}) > 1]


def variant(kind: str, method: str, options: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Name a method with those options in `shown` that are not the defaults; those of a named set by its name."""
    default, name = complete(kind, method, {}), method
    rest = {k: options[k] for k in shown if k in options and options[k] != default.get(k)}
    for label, chosen in NAMED.items():
        if all(options.get(k) == v for k, v in chosen.items()):
            name, rest = f"{name} {label}", {k: v for k, v in rest.items() if k not in chosen}
    return " ".join([name, *(f"{k}={written(v)}" for k, v in rest.items())])


def explain(kind: str, method: str) -> tuple[str, dict[str, str]]:
    """Read a decoder's docstring without its options, and what it says of each option."""
    code = read_outline(f"decoders/{kind}", method).functions.get(method)
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


def labels(rows: Sequence[Row]) -> list[str]:
    """Make a short name per row of one kind: its method, of the options in which the method's variants differ those
    that are not the defaults, and what else distinguishes rows."""
    own = [(str(row["method"]), read(row["options"])) for row in rows]
    vary = {method: varying([o for m, o in own if m == method]) for method, _ in own}
    names = [variant(row["kind"], m, o, vary[m]) for row, (m, o) in zip(rows, own, strict=True)]
    more = [{**settings_of(row), "seed": row.get("seed"), "key": row.get("key")} for row in rows]
    for name in varying(more):
        values: dict[str, set[str]] = {}  # of this setting, by label
        for label, setting in zip(names, more, strict=True):
            values.setdefault(label, set()).add(json.dumps(setting.get(name), default=str))
        form = {"model": "{1}: {0}", "task": "{0} ({1})"}.get(name, "{0}, {2}")
        names = [
            form.format(label, s.get(name), pairs({name: s.get(name)}, " ")) if len(values[label]) > 1 else label
            for label, s in zip(names, more, strict=True)
        ]
    return [n if names.count(n) == 1 else f"{n} #{names[: i + 1].count(n)}" for i, n in enumerate(names)]
