"""What each decoder's equality rows add up to: which rows are judged together, under which name, and the verdicts.

Images are judged cell by cell. A text variant is judged once, on all tasks: its tests are one family. A decoder of
continuous tokens is judged on mixtures, whose law is known, and beside that on each model, where one token's law is
sampled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_certify.verdict import columns_of, verdicts

from parity.base.files import canonical
from parity.experiment.cells import Cell, Variant
from parity.experiment.options import SMALL, needs, on_enumerable, options, plain
from parity.experiment.schema import Config
from parity.report.settings import variant as name_of
from parity.report.verdict_scope import Scope, add_reach

NOT_FORCED = "with continuous.forced = 0 the law of one token is not tested on the model"


class Tested(NamedTuple):
    """What a file says of a cell: rows, and what stands beside them."""

    cell: Cell
    exact: Variant | None  # how the cell's method ran on models of known law; None for rows on the cell's own model
    again: bool  # of the repetition on a fresh seed, which confirms or clears what was rejected
    test: str  # identifies what was run: cells that share a test have the same, and its rows are counted once
    said: dict[str, Any]
    long: bool = False  # on long models, at its own options


class Name(NamedTuple):
    """What a cell's rows are judged by."""

    key: str
    label: str
    counts: bool = True  # the rows of this cell are among those that are judged


def judged_by(settings: Config, t: Tested, label: str) -> Name:
    """The cell itself; or its variant, where that is judged apart from the cells that it is in."""
    kind, method, chosen = t.cell.kind, t.cell.spec["method"], t.cell.spec["options"]
    if kind == "anysubset" and settings.text is not None:
        name = name_of(kind, method, chosen, list(chosen))
        # Controls differ from references by chance alone, and uncached cells by rounding: they are not tested as well.
        return Name(name, name, t.cell.role != "control" and t.cell.spec["cache"] == settings.text.cache[0])
    if kind == "continuous" and t.exact is not None:
        default = options(kind, method, {})
        told = [k for k, v in chosen.items() if v != default[k] or k in SMALL[kind]]
        name = f"{name_of(kind, method, chosen, told)}, on mixtures"
        return Name(name, name)
    return Name(t.cell.key, label)


def judge(
    settings: Config, tested: Sequence[Tested], labels: Mapping[str, str], tokens: Mapping[str, int]
) -> tuple[list[Row], list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """One kind's rows under the names that they are judged by, a verdict (`parity_certify.verdict`, with its label)
    for each name, and the verdict on each cell by its key. labels, and tokens that a run decodes: of cells, by key."""
    rows: list[Row] = []
    shown, claims, read = {}, {}, set()
    scopes: dict[str, Scope] = {}
    decoded: dict[str, int] = {}  # tokens of the longest run, by name
    names: dict[str, list[str]] = {}  # that speak for a cell, by its key
    for t in tested:
        name = judged_by(settings, t, labels[t.cell.key])
        names.setdefault(t.cell.key, []).append(name.key)
        decoded[name.key] = max(decoded.get(name.key, 0), tokens[t.cell.key])
        if not name.counts or (name.key, t.test) in read:  # a variant's rows, come upon once more
            continue
        read.add((name.key, t.test))
        shown[name.key], claims[name.key] = name.label, t.cell.claim
        ran = t.cell.spec["options"] if t.exact is None else t.exact.options
        cut = t.exact.options if t.exact is not None and not t.long else None
        before = scopes.get(name.key)
        scopes[name.key] = Scope(t.cell.kind, t.cell.spec["options"], cut or (before.cut if before else None))
        place = {"key": name.key, "method": t.cell.spec["method"], "options": canonical(ran)} | (
            {"repeat": 1, "seed": settings.seeds.again} if t.again else {}
        )
        rows += [r | {"model": r["model"] or t.cell.spec["model"]} | place for r in t.said["rows"]]
    if any(t.cell.kind == "anysubset" for t in tested):
        for name_key, repeat in ((n, repeat) for n in claims for repeat in (0, 1)):
            R.family(r for r in rows if (r["key"], r["repeat"]) == (name_key, repeat) and r["layer"] != "exact")
    judged = verdicts(rows, claims, settings.equality.margin_tv, settings.equality.alpha)
    for v in judged:
        own, scope = [r for r in rows if r["key"] == v["key"]], scopes[v["key"]]._replace(tokens=decoded[v["key"]])
        v |= add_reach(v, own, scope, settings.equality.alpha)
        if not plain(scope.kind, v["method"], dict(scope.own)) and (layers := find_undrafted(own)):
            v |= refuse_undrafted(v, f"tests of layer {' and '.join(layers)}")
    by_name = {v["key"]: v for v in judged}
    speak = {key: [by_name[n] for n in own if n in by_name] for key, own in names.items()}
    of_cell = {key: min(own, key=openness) for key, own in speak.items() if own}
    return rows, [v | {"label": shown[v["key"]]} for v in judged], of_cell


def find_undrafted(rows: Sequence[Row]) -> list[str]:
    """Layers that count accepted drafts and found none."""
    accepted: dict[str, int] = {}
    for r in rows:
        if r.get("accepted_drafts") is not None:
            accepted[r["layer"]] = accepted.get(r["layer"], 0) + r["accepted_drafts"]
    return [layer for layer, count in accepted.items() if not count]


def refuse_undrafted(verdict: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is laid over a verdict that no layer rejects where no draft was accepted: speculation was not tested."""
    value = verdict.get("value")
    if value is None or value.within or value.kind not in ("certified", "consistent"):
        return {}
    reason = f"no draft was accepted in the {where}: speculation was not tested"
    value = replace(value, kind="inconclusive", reason=reason, bound=None, estimate=None, interval=None)
    return columns_of(value, verdict["claim"]) | {"pill": f"{value.words}: no draft accepted"}


def of_run(row: Mapping[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict on a cell, given its summary row: inconclusive if its run accepted no draft. Discrete runs count no
    drafts, but each one accepted saves a pass."""
    kind, method, accepted = row["kind"], row["method"], row.get("accepted_drafts")
    if kind == "discrete":
        none = row["nfe_ratio"] >= 1
    else:
        none = accepted == 0 or (accepted is None and bool(needs(kind, method)))
    if not none or plain(kind, method, json.loads(row["options"])):
        return verdict
    return verdict | refuse_undrafted(verdict, "run")


def untested(settings: Config, cell: Cell) -> dict[str, Any]:
    """What stands in the place of a verdict on a cell that no layer tested: why."""
    known = on_enumerable(cell.kind, cell.spec["method"], cell.spec["options"])
    why = [] if known else ["its options do not run on models whose law is known"]
    if cell.kind == "continuous" and settings.continuous is not None and not settings.continuous.forced:
        why.append(NOT_FORCED)
    return {"note": "; ".join(why) or "no layer tests it"}


def openness(verdict: dict[str, Any]) -> int:
    """Of several verdicts on a cell the one that found a fault stands, else one that left something open, else the
    first, which is the exact layer's."""
    return {"lossy": 0, "inconclusive": 1}.get(verdict["value"].kind, 2)
