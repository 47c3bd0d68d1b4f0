"""How far a verdict saw: at which options and on which models a decoder was tested, and what of its own was not.

The exact layer cuts options that count places to its few tokens; the long layer runs a decoder at its own. A verdict
says both, in its pill as in its note, and certifies nothing at options that were not tested.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parity_certify.rows import Row

from parity.base.files import canonical
from parity.experiment.options import longest_place
from parity.report.format import number, pairs

TABLES = ("positions", "slots", "transitions", "distances", "pairs")  # tests whose effect is a shift per token


class Scope(NamedTuple):
    """What a decoder was tested with, beside its rows."""

    kind: str
    own: Mapping[str, Any]  # the cell's options
    cut: Mapping[str, Any] | None  # those of the exact layer; None where it was not run


def tokens_of(model: str) -> int | None:
    """Tokens of a model of known law, from its name: "random-0 3x5", "chain 8x64", "mixture 3 x 1-D"."""
    if found := re.search(r"(\d+) x \d+-D", model):
        return int(found[1])
    found = re.search(r"\d+x(\d+)$", model)
    return int(found[1]) if found else None


def lengths(models: Iterable[str]) -> list[int]:
    return sorted({n for model in models if (n := tokens_of(model)) is not None})


def named(models: Sequence[str]) -> str:
    """Models and their lengths: "6 models of 4 to 5 tokens"."""
    sizes = lengths(models)
    of = f" of {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "") + " tokens" if sizes else ""
    return f"{len(models)} model{'s' * (len(models) > 1)}{of}"


def told(options: Mapping[str, Any], names: Iterable[str]) -> str:
    return pairs({name: options[name] for name in names}, " ")


def models_of(rows: Sequence[Row], layer: str) -> list[str]:
    """Models of a layer's deciding tests and certificates, each once."""
    return list(dict.fromkeys(r["model"] for r in rows if r["layer"] == layer and r["verdict"] != "not run"))


def shift(rows: Sequence[Row]) -> float | None:
    """The shift per token that the long layer finds on each of its models: of each its finest test's."""
    finest: dict[str, float] = {}
    for r in rows:
        if r["test"] in TABLES and r["minimum_detectable_effect"] is not None and r["repeat"] == 0:
            finest[r["model"]] = min(finest.get(r["model"], 1.0), r["minimum_detectable_effect"])
    return max(finest.values(), default=None)


def at_length(verdict: Mapping[str, Any], rows: Sequence[Row], alpha: float) -> tuple[str, str]:
    """What the long layer says: "rejected" or "not rejected", and its figure."""
    p = verdict["p_decoders"].get("long")
    if p is None:
        return "not tested", ""
    if p > alpha:
        least = shift(rows)
        return "not rejected", "" if least is None else f"a shift of {number(least, 2)} per token would be found"
    worst = min((r for r in rows if r["p_value"] is not None and r["repeat"] == 0), key=lambda r: r["p_value"])
    effect = "" if worst["effect"] is None else f", effect {worst['effect']:.3g}"
    return "rejected", f"{worst['test']}{effect} on {worst['model']}"


def fields(verdict: Mapping[str, Any], rows: Sequence[Row], scope: Scope, alpha: float) -> dict[str, Any]:
    """What is laid over a verdict: a note and a pill that say how far it saw, and

    tested_options  JSON of the options of the exact layer
    tested_models   what the exact and the long layer ran on
    own_options     "tested" if all of the decoder's own were, on models whose law is known; "not tested" if not
    reach           the sentence alone
    """
    exact, long = models_of(rows, "exact"), models_of(rows, "long")
    words, (place, largest) = str(verdict["verdict"]), longest_place(scope.kind, scope.own)
    cut = [] if scope.cut is None or not exact else [k for k in scope.own if scope.own[k] != scope.cut.get(k)]
    short, far = max(lengths(exact), default=0), max(lengths(long), default=0)
    whole = bool(exact) and not cut and largest <= short
    seen, figure = at_length(verdict, [r for r in rows if r["layer"] == "long"], alpha)
    deep = seen != "not tested" and 2 * largest <= far
    own = told(scope.own, cut) or (f"{place} {largest}" if place else "its own options")
    said = []
    if exact:
        at = f"at {told(scope.cut or {}, cut)}" if cut else "at its own options"
        said.append(f"joint law tested on {named(exact)} {at}")
    if long:
        said.append(f"{own} tested on {named(long)}: {seen}" + (f" ({figure})" if figure else ""))
        if not deep:
            said.append(f"{place} {largest} is more than half of them")
    elif exact and not whole:
        said.append(f"{own} not tested on a model whose law is known")
    other = [layer for layer in verdict["p_decoders"] if layer not in ("exact", "long")]
    if other:
        said.append(f"own model and options: {', '.join(other)}")
    reach = "; ".join(said)
    pill = pilled(words, verdict, Seen(told(scope.cut or {}, cut), own, short, far if deep else 0, seen, whole))
    return {
        "note": "; ".join(filter(None, [verdict["note"], reach])),
        "pill": pill,
        "reach": reach,
        "tested_options": canonical(scope.cut if exact else scope.own),
        "tested_models": "; ".join(named(m) for m in (exact, long) if m),
        "own_options": "tested" if whole or deep else "not tested",
    }


class Seen(NamedTuple):
    cut: str  # the options that the exact layer cut, as it ran them; "" where it cut none
    own: str  # the same as they are
    short: int  # tokens of the longest model of the exact layer, 0 where it was not run
    far: int  # of the long layer, 0 where it did not reach the options
    found: str  # "rejected", "not rejected" or "not tested", by the long layer
    whole: bool  # the exact layer ran the decoder's own options


def pilled(words: str, verdict: Mapping[str, Any], s: Seen) -> str:
    """The verdict in a line, with what it does not reach."""
    lossy, tv = words.startswith("lossy"), words.partition("TV = ")[2]
    if not s.short and not s.far:
        return words
    if lossy and not tv:
        at = "its own options" if not s.far else f"{s.own} on {s.far} tokens"
        return f"lossy at {at}" if s.found == "rejected" else words
    if not (lossy or words.startswith(("certified", "consistent"))):
        return words
    head = "lossy" if lossy else words
    here = f"{head} at {s.cut} on {s.short} tokens" if s.cut else f"{head} on {s.short} tokens"
    here += f": TV = {tv}" if tv else ""
    if not s.short:
        here = words
    if not s.far:
        return here if s.whole else f"{here}; {s.own} not tested"
    again = {"rejected": "rejected", "not rejected": "not rejected" if lossy else "consistent"}[s.found]
    return f"{here}; {s.own} {again} on {s.far}" if s.cut else f"{here}, {again} on {s.far}"
