"""What each decoder's equality rows add up to: which rows are judged together, under which name, and the verdicts.

Images are judged cell by cell. A text variant is judged once, on all tasks: its tests are one family. A decoder of
continuous tokens is judged on mixtures, whose distribution is known, and beside that on each model, where the
distribution of one token is sampled."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_certify.verdict import Verdict, adjust_missing, judge_decoders, make_columns

from parity.base.files import dump_canonical
from parity.experiment.cells import Cell, Variant
from parity.experiment.made import is_made
from parity.experiment.options import claimant, declaration, is_plain_decoding, list_lengths, needs, runs_on_enumerable
from parity.experiment.schema import Config
from parity.report.blocks import format_settings
from parity.report.settings import name_variant as name_of
from parity.report.tables import format_number, show_bound

UNTESTABLE = (  # of tokens made elsewhere
    "the decoder on models whose distribution is known", "plain decoding's tokens under its noise", "its counts",
)  # fmt: skip
URGENCY = {"lossy": 0, "inconclusive": 1}  # of the verdicts on a cell the smallest decides; 2 for all others
NOT_FORCED = "with continuous.forced = 0 the distribution of one token is not tested on the model"


class Tested(NamedTuple):
    """The tests of a cell in one file: rows, and figures that go with them."""

    cell: Cell
    ran: Variant | None  # the variant that ran on models of known distribution; None if the cell's own model was tested
    repeated: bool  # whether this is the repetition on a fresh seed, which confirms or clears a rejection
    test: str  # identifies the test, because cells may share one: its rows are counted once
    results: dict[str, Any]
    long: bool = False  # whether it ran on long models, at the method's own options


class Name(NamedTuple):
    key: str
    label: str
    counts: bool = True  # whether this cell's rows are judged


def name_judged(settings: Config, t: Tested, label: str) -> Name:
    """Choose the name under which a cell's tests are judged: its own key and `label`; its variant for text, whose tests
    of all tasks are one family, and for vectors tested on mixtures."""
    kind, method, options = t.cell.kind, t.cell.spec["method"], t.cell.spec["options"]
    if kind == "anysubset" and settings.text is not None:
        name = name_of(kind, method, options, list(options))
        # Controls differ from references by chance alone, uncached cells from cached by rounding: not tested again.
        return Name(name, name, t.cell.role != "control" and t.cell.spec["cache"] == settings.text.cache[0])
    if kind == "continuous" and t.ran is not None:
        name = f"{name_of(kind, method, options, list(options))}, on mixtures"
        return Name(name, name)
    return Name(t.cell.key, label)


def judge_tests(
    settings: Config, tested: Sequence[Tested], labels: Mapping[str, str], tokens: Mapping[str, int]
) -> tuple[list[Row], list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Judge the tests of one kind's cells. labels, tokens: of a run, by a cell's key. Returns the tests' rows, `key`
    being the name that they are judged under; a verdict for each name; and by a cell's key its least favourable
    verdict."""
    rows: list[Row] = []
    label_of: dict[str, str] = {}  # labels, claims and scopes are by the name that is judged
    claims: dict[str, str] = {}
    scopes: dict[str, Scope] = {}
    counted: set[tuple[str, str]] = set()  # pairs of a name and a test whose rows are in
    names: dict[str, list[str]] = {}  # by a cell's key the names under which it is judged
    run_tokens: dict[str, int] = {}  # by name the tokens of the longest run
    for t in tested:
        key, label, counts = name_judged(settings, t, labels[t.cell.key])
        names.setdefault(t.cell.key, []).append(key)
        run_tokens[key] = max(run_tokens.get(key, 0), tokens[t.cell.key])
        if not counts or (key, t.test) in counted:
            continue
        counted.add((key, t.test))
        label_of[key] = label
        claims[key] = t.cell.claim
        method, options = t.cell.spec["method"], t.cell.spec["options"]
        exact = t.ran.options if t.ran is not None and not t.long else None
        longest = next(iter(list_lengths(t.cell.kind, method, options).items()), ("", 0))
        scopes[key] = Scope(t.cell.kind, longest, options, exact or (scopes[key].exact if key in scopes else None))
        fields = {"key": key, "method": method, "options": dump_canonical(t.ran.options if t.ran else options)}
        fields |= {"repeat": 1, "seed": settings.seeds.again} if t.repeated else {}
        rows += [r | {"model": r["model"] or t.cell.spec["model"]} | fields for r in t.results["rows"]]
    alpha = settings.equality.alpha
    if any(t.cell.kind == "anysubset" for t in tested):
        rows = R.adjust_families(rows, lambda r: None if r["layer"] == "exact" else (r["key"], r["repeat"]), alpha)
    rows = adjust_missing(rows, alpha)
    judged = judge_decoders(rows, claims, settings.equality.margin_tv, alpha)
    for v in judged:
        tests = [r for r in rows if r["key"] == v["key"]]
        scope = scopes[v["key"]]._replace(tokens=run_tokens[v["key"]])
        v |= add_reach(v, tests, scope, alpha)
        if is_made(scope.kind, v["method"]):
            v |= explain_made(v, scope.options)
        kind, method, options = scope.kind, v["method"], dict(scope.options)
        v |= {"claimant": claimant(kind, method, options), "origin": declaration(kind, method).ORIGIN}
        if not is_plain_decoding(kind, method, options) and (layers := find_undrafted(tests)):
            v |= refuse_undrafted(v, f"tests of layer {' and '.join(layers)}")
    by_name = {v["key"]: v for v in judged}
    final = {}
    for key, cell_names in names.items():
        if verdicts := [by_name[n] for n in cell_names if n in by_name]:
            final[key] = min(verdicts, key=lambda v: URGENCY.get(v["value"].kind, 2))
    return rows, [v | {"label": label_of[v["key"]]} for v in judged], final


def explain_made(verdict: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the changes to the verdict on tokens made elsewhere: what tokens cannot tell, how to confirm a rejection."""
    value: Verdict = verdict["value"]
    reason, rejected = value.reason, " and ".join(verdict["rejected_by"])
    if value.kind == "inconclusive" and rejected and not options["again"]:
        reason = f"rejected by {rejected} once; give a file of another seed as again, to tell chance from fault"
    value = replace(value, reason=reason, untested=UNTESTABLE)
    missing = f"not tested: {', '.join(UNTESTABLE)}"
    scope = "" if value.kind == "inconclusive" else f"on these tokens alone; {missing}"
    return make_columns(value, verdict["claim"]) | {"scope": scope, "reach": f"{verdict['reach']}; {missing}"}


def find_undrafted(rows: Sequence[Row]) -> list[str]:
    """List the layers whose tests counted accepted drafts and found none in all of their rows."""
    accepted: dict[str, int] = {}
    for r in rows:
        if r.get("accepted_drafts") is not None:
            accepted[r["layer"]] = accepted.get(r["layer"], 0) + r["accepted_drafts"]
    return [layer for layer, count in accepted.items() if not count]


def refuse_undrafted(verdict: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Make the changes that turn a certified or consistent verdict into "inconclusive" because no draft was accepted in
    the tests that `source` names. {} for other verdicts."""
    value = verdict["value"]
    if value.within or value.kind not in ("certified", "consistent"):
        return {}
    reason = f"no draft was accepted in the {source}: speculation was not tested"
    value = replace(value, kind="inconclusive", reason=reason, bound=None, estimate=None, interval=None)
    return make_columns(value, verdict["claim"]) | {"pill": f"{value.words}: no draft accepted", "scope": ""}


def add_run(row: Mapping[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on a cell, with a remark if its run accepted no draft (of images: saved no pass). Its kind
    stays, as it rests on tests alone."""
    kind, method, accepted, drafted = row["kind"], row["method"], row.get("accepted_drafts"), row.get("drafted")
    if kind == "discrete":
        none = row["nfe_ratio"] >= 1
    else:
        none = accepted == 0 or (accepted is None and bool(needs(kind, method)))
    if not none or is_plain_decoding(kind, method, json.loads(row["options"])):
        return verdict
    count = f"0 of {drafted:,} drafts were" if drafted else "no draft was"
    remark = f"in this run {count} accepted, so nothing was saved"
    shown = {name: verdict[name] for name in ("scope", "note") if verdict.get(name)} or {"note": ""}
    return verdict | {name: "; ".join(filter(None, (text, remark))) for name, text in shown.items()}


def explain_untested(settings: Config, cell: Cell) -> dict[str, Any]:
    is_enumerable = runs_on_enumerable(cell.kind, cell.spec["method"], cell.spec["options"])
    reasons = [] if is_enumerable else ["with these options it does not run on the small models of known distribution"]
    if cell.kind == "continuous" and settings.continuous is not None and not settings.continuous.forced:
        reasons.append(NOT_FORCED)
    return {"note": "; ".join(reasons) or "no layer tests it"}


# --- how far a verdict reaches: on which models and options


TABLES = ("positions", "slots", "transitions", "distances", "pairs")  # the effect of these tests is a shift per token


class Scope(NamedTuple):
    """What a decoder was tested with, beside its rows."""

    kind: str
    longest: tuple[str, int]  # the option that says how far a pass looks, and its value; ("", 0) if none does
    options: Mapping[str, Any]  # the options of the cell
    exact: Mapping[str, Any] | None  # the options of the exact layer's run; None if it was not run
    tokens: int = 0  # how many tokens a run decodes


def find_lengths(rows: Sequence[Row], layer: str) -> list[int]:
    """List how many tokens each model has on which a layer's tests were run, a number a model."""
    return list({r["model"]: r["tokens"] for r in rows if r["layer"] == layer and r["verdict"] != "not run"}.values())


def describe_range(lengths: Sequence[int]) -> str:
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low} to {high}"


def describe_models(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} model{'s' * (len(lengths) > 1)} of {describe_range(lengths)} tokens"


def describe_exact(value: Verdict, lengths: Sequence[int], options: str, kind: str) -> str:
    """Describe on which models the exact layer reached its verdict. options: those that it changed, or ""."""
    models = "mixtures in place of a diffusion head" if kind == "continuous" else "small models"
    conditions = f"({describe_range(lengths)} tokens{f', {options}' if options else ''})"
    if value.kind == "lossy":
        return f"on {models} {conditions}, measured on the one where the fault is surest"
    margin = "" if value.margin is None else f"within {value.margin:g} "
    return f"{margin if value.kind == 'certified' else 'no difference '}on {models} {conditions}"


def find_shift(rows: Sequence[Row]) -> float | None:
    """Find the largest shift of probability per token that the finest test of some long model would miss."""
    finest: dict[str, float] = {}
    for r in rows:
        if r["repeat"] == 0 and r["test"] in TABLES and r["minimum_detectable_effect"] is not None:
            finest[r["model"]] = min(finest.get(r["model"], 1.0), r["minimum_detectable_effect"])
    return max(finest.values(), default=None)


def describe_long(rows: Sequence[Row], rejected: bool) -> str:
    """Describe what the long layer's rows found: the test that rejects, or the shift per token that would be found."""
    first = [r for r in rows if r["repeat"] == 0]
    if rejected:
        worst = min((r for r in first if r["p_value"] is not None), key=lambda r: r["p_value"])
        effect = "" if worst["effect"] is None else f", effect {worst['effect']:.3g}"
        return f"rejected ({worst['test']}{effect} on {worst['model']})"
    shift = find_shift(rows)
    if shift is None:
        return "not rejected"
    return f"not rejected (a shift of {format_number(shift, 2)} per token would be found)"


def add_reach(judged: Mapping[str, Any], rows: Sequence[Row], scope: Scope, alpha: float) -> dict[str, Any]:
    """Make the changes to the verdict `judged` that say how far it reaches: no further than the shortest of a layer's
    models, on which alone all of its tests were run.

    scope           where and at which options it holds, in a line; reach: what was tested and what was not
    tested_options  JSON of the options of the exact layer; tested_models: what the exact and the long layer ran on
    own_options     "tested" if all of the decoder's own were, on models of known distribution; "not tested" if not
    """
    exact, long = find_lengths(rows, "exact"), find_lengths(rows, "long")
    option, largest = scope.longest
    long_rows = [r for r in rows if r["layer"] == "long"]
    p = judged["p_decoders"].get("long")
    rejected = p is not None and p <= alpha
    names = [k for k in scope.options if scope.exact is not None and exact and scope.options[k] != scope.exact.get(k)]
    # The options that the exact layer changed, as it ran them and as the cell did.
    cut, own = (format_settings({n: of[n] for n in names}, " ") for of in (scope.exact or {}, scope.options))
    own = own or (f"{option} {largest}" if option else "its own options")
    by_exact = bool(exact) and not cut and largest <= min(exact)  # the exact layer ran the decoder's own options
    by_long = p is not None and 2 * largest <= min(long)  # the long layer ran them, on models twice as long as a pass
    tested = []
    untested = [] if by_exact or by_long else [own]
    if exact:
        tested.append(f"joint distribution tested on {describe_models(exact)} at {cut or 'its own options'}")
    if long:
        outcome = "not tested" if p is None else describe_long(long_rows, rejected)
        tested.append(f"{own} tested on {describe_models(long)}: {outcome}")
    for r in (r for r in long_rows if r["test"] == "tail" and r["repeat"] == 0):
        bound = format_number(r["effect"], 2)
        tested.append(f"{r['model']} in float32 draws tokens of next to no probability at most {bound} of the time")
    if layers := [layer for layer in judged["p_decoders"] if layer not in ("exact", "long")]:
        tested.append(f"own model and options: {', '.join(layers)}")
    value = replace(judged["value"], tested=tuple(tested), untested=tuple(untested))
    reason = f"{option} {largest} is more than half of them" if long else "not tested on a model of known distribution"
    lacking = [reason if long else f"{name} {reason}" for name in untested if exact or long]

    # Below, the scope is written: where and at which options the verdict holds.
    tokens = f"on {describe_range(long)} tokens" if by_long else ""
    if by_long and max(long) < scope.tokens:
        tokens = f"up to {max(long)} of {scope.tokens} tokens"
    on_exact = describe_exact(value, exact, cut, scope.kind) if exact else ""
    shift = find_shift(long_rows)
    outcome = "no difference" if shift is None else f"nothing beyond {format_number(shift, 2)} a token"
    if rejected or value.kind == "lossy":
        outcome = "rejected" if rejected else "not rejected"
    if value.kind == "inconclusive" or value.within or not (exact or by_long):
        line = ""
    elif value.kind == "lossy" and value.estimate is None:
        line = (f"at {own} {tokens}" if by_long else "at its own options") if rejected else ""
    elif not exact:
        line = f"at {own} {tokens}"
    elif not by_long:
        line = on_exact if by_exact else f"{on_exact}; {own} on no model whose distribution is known"
    else:
        line = f"{on_exact}; at {own} {outcome} {tokens}" if cut else f"{on_exact}; {outcome} {tokens}"
    return {
        "value": value,
        "pill": write_pill(value, ("mixture" if scope.kind == "continuous" else "small model") if exact else ""),
        "scope": line,
        "reach": "; ".join([*tested, *lacking]),
        "tested_options": dump_canonical(scope.exact if exact else scope.options),
        "tested_models": "; ".join(describe_models(lengths) for lengths in (exact, long) if lengths),
        "own_options": "not tested" if untested else "tested",
    }


def write_pill(value: Verdict, model: str = "") -> str:
    """Write a verdict in a few words, with its TV; model: "small model", "mixture" or "", on which that was found."""
    if value.kind == "inconclusive" or value.within or value.dependent:
        return value.words
    models = f" on {model}s" if model else ""
    if value.kind == "lossy":
        return "lossy" if value.estimate is None else f"lossy{models}, TV = {format_number(value.estimate, 2)}"
    bound = "" if value.bound is None else f", TV ≤ {show_bound(value.bound).text}"
    return f"{value.kind}{models}{bound}"
