"""How far a verdict saw: at which options and on which models a decoder was tested, and what of its own was not.

The exact layer cuts options that count places to its few tokens; the long layer runs a decoder at its own. A verdict
says both, in its pill as in its note, and certifies nothing at options that were not tested.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from parity_certify.result_rows import Row
from parity_certify.verdict import Verdict

from parity.base.files import canonical
from parity.experiment.options import longest_place
from parity.report.format import number, pairs

TABLES = ("positions", "slots", "transitions", "distances", "pairs")  # tests whose effect is a shift per token


class Scope(NamedTuple):
    """What a decoder was tested with, beside its rows."""

    kind: str
    own: Mapping[str, Any]  # the cell's options
    cut: Mapping[str, Any] | None  # those of the exact layer; None where it was not run
    tokens: int = 0  # that a run decodes


class Reach(NamedTuple):
    """What the exact and the long layer tested. A layer reaches as far as the shortest of its models: on it alone all
    of its tests were run."""

    exact: list[int]  # tokens of each model of the exact layer; [] where it was not run
    long: list[int]  # likewise
    cut: str  # options that the exact layer cut, as it ran them; "" where it cut none
    own: str  # the same as they are
    whole: bool  # the exact layer ran the decoder's own options
    deep: bool  # the long layer did, on models of twice their places
    rejected: bool  # by the long layer
    tokens: int  # that a run decodes


def list_options(options: Mapping[str, Any], names: Iterable[str]) -> str:
    return pairs({name: options[name] for name in names}, " ")


def find_lengths(rows: Sequence[Row], layer: str) -> list[int]:
    """Tokens of each model on which a layer's tests were run."""
    return list({r["model"]: r["tokens"] for r in rows if r["layer"] == layer and r["verdict"] != "not run"}.values())


def describe_range(lengths: Sequence[int]) -> str:
    """Tokens of models: "64", or "64 to 256"."""
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low} to {high}"


def describe_models(lengths: Sequence[int]) -> str:
    """Models and their tokens: "6 models of 4 to 5 tokens"."""
    return f"{len(lengths)} model{'s' * (len(lengths) > 1)} of {describe_range(lengths)} tokens"


def find_shift(rows: Sequence[Row]) -> float | None:
    """The shift per token that the long layer finds on each of its models: of each its finest test's."""
    finest: dict[str, float] = {}
    for r in rows:
        if r["test"] in TABLES and r["minimum_detectable_effect"] is not None and r["repeat"] == 0:
            finest[r["model"]] = min(finest.get(r["model"], 1.0), r["minimum_detectable_effect"])
    return max(finest.values(), default=None)


def describe_long(rows: Sequence[Row], p: float | None, alpha: float) -> str:
    """What the long layer's rows say, and its figure; p is corrected, None where no test could be run."""
    if p is None:
        return "not tested"
    if p > alpha:
        least = find_shift(rows)
        return "not rejected" + ("" if least is None else f" (a shift of {number(least, 2)} per token would be found)")
    worst = min((r for r in rows if r["p_value"] is not None and r["repeat"] == 0), key=lambda r: r["p_value"])
    effect = "" if worst["effect"] is None else f", effect {worst['effect']:.3g}"
    return f"rejected ({worst['test']}{effect} on {worst['model']})"


def add_reach(judged: Mapping[str, Any], rows: Sequence[Row], scope: Scope, alpha: float) -> dict[str, Any]:
    """What is laid over a verdict: its value with what was tested and what was not, a pill that says how far it saw,

    tested_options  JSON of the options of the exact layer
    tested_models   what the exact and the long layer ran on
    own_options     "tested" if all of the decoder's own were, on models whose law is known; "not tested" if not
    reach           what was tested and what was not, as a sentence
    """
    exact, long = find_lengths(rows, "exact"), find_lengths(rows, "long")
    (place, largest), p = longest_place(scope.kind, scope.own), judged["p_decoders"].get("long")
    names = [k for k in scope.own if scope.cut is not None and exact and scope.own[k] != scope.cut.get(k)]
    cut = list_options(scope.cut or {}, names)
    own = list_options(scope.own, names) or (f"{place} {largest}" if place else "its own options")
    whole = bool(exact) and not cut and largest <= min(exact)
    deep = p is not None and 2 * largest <= min(long)
    reach = Reach(exact, long, cut, own, whole, deep, p is not None and p <= alpha, scope.tokens)
    tested, untested = [], [] if whole or deep else [own]
    if exact:
        tested.append(f"joint law tested on {describe_models(exact)} at {cut or 'its own options'}")
    if long:
        found = describe_long([r for r in rows if r["layer"] == "long"], p, alpha)
        tested.append(f"{own} tested on {describe_models(long)}: {found}")
    if other := [layer for layer in judged["p_decoders"] if layer not in ("exact", "long")]:
        tested.append(f"own model and options: {', '.join(other)}")
    value = replace(judged["value"], tested=tuple(tested), untested=tuple(untested))
    why = f"{place} {largest} is more than half of them" if long else "not tested on a model whose law is known"
    lacking = [why if long else f"{name} {why}" for name in untested if exact or long]
    return {
        "value": value,
        "pill": write_pill(value, reach),
        "reach": "; ".join([*tested, *lacking]),
        "tested_options": canonical(scope.cut if exact else scope.own),
        "tested_models": "; ".join(describe_models(lengths) for lengths in (exact, long) if lengths),
        "own_options": "not tested" if untested else "tested",
    }


def write_pill(value: Verdict, reach: Reach) -> str:
    """The verdict in a line, with what it does not reach."""
    lossy, r = value.kind == "lossy", reach
    if value.kind == "inconclusive" or value.within or not (r.exact or r.deep):
        return value.words
    far = f"on {describe_range(r.long)}" if r.deep else ""
    if r.deep and max(r.long) < r.tokens:
        far = f"to {max(r.long)} of {r.tokens}"
    if lossy and value.estimate is None:
        at = f"{r.own} {far} tokens" if r.deep else "its own options"
        return f"lossy at {at}" if r.rejected else value.words
    if not r.exact:
        return f"{value.words} at {r.own} {far} tokens"
    here = ("lossy" if lossy else value.words) + (f" at {r.cut}" if r.cut else "")
    here += f" on {describe_range(r.exact)} tokens" + (f": TV = {value.estimate:.4f}" if lossy else "")
    if not r.deep:
        return here if r.whole else f"{here}; {r.own} not tested"
    again = "rejected" if r.rejected else "not rejected" if lossy else "consistent"
    return f"{here}; {r.own} {again} {far} tokens" if r.cut else f"{here}, {again} {far} tokens"
