"""The verdict as a value, and the verdict on each decoder from the rows of all layers.

    judge_decoders(rows, claims={"sjd": "lossless", ...}, margin=0.01) -> dicts, one a (method, key)

Claims are by key or method. Each dict holds the `Verdict` under "value"; others are made from it (`make_columns`).

    certified lossless   the exact layer's TV bound is below `margin` on every target, and no layer rejects
    consistent           no layer rejects, but the bound is not below the margin, or the exact layer was not run; with
                         the minimum detectable effect
    lossy: TV = x        a layer rejects, and rejects again on a fresh seed; x without the plug-in's bias
                         (`joint_tests.estimate_tv`), with its interval, if the exact layer measured it, else the layer
                         that rejected, with its effect
    equal within eps     a decoder that follows plain decoding's own path came within its tolerance of it, pathwise;
                         if it did not: differs by more than eps
    inconclusive         nothing was tested, or a rejection did not repeat or was not repeated, or no test rejects where
                         the TV's interval excludes 0

Within a layer a decoder's p-value is the smallest p_holm of its deciding rows (repeat 0); Holm over decoders follows,
then Holm over the layers of one decoder, so that a correct one is rejected anywhere with probability alpha at most.
Rows of repeats confirm a rejection and never replace it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from parity_certify import result_rows as R
from parity_certify.result_rows import Row

Runs = tuple[list[Row], list[Row]]  # rows of one layer: of the run itself, and of its repeats
CERTAIN = "pathwise"  # this layer compares tokens, so a difference is not due to chance
WITHIN = "equal within eps"
Kind = Literal["certified", "consistent", "lossy", "inconclusive"]
Required = Literal["certified", "consistent"]
REQUIRED: tuple[Required, ...] = ("certified", "consistent")


@dataclass(frozen=True)
class Verdict:
    """What the tests say of a decoder. Sentences, pills, badges, JSON and exit codes are made from it.

    kind       see the head of this module
    bound      upper bound on the TV, over all targets, None where no joint distribution was counted
    estimate   of the TV on the target that differs most, corrected; interval: its interval. Both hold with the
               confidence of the exact layer's certificates (column `alpha`)
    n          sequences of the smallest sample that the bound stands on
    dependent  rows depend on each other, although each alone may have the right distribution
    within     the claim was equality within a tolerance, on the baseline's own path
    require    the least kind that passes
    tested, untested   what was, and what was not
    where      where it fails: of a black box prompt and prefix, of texts a range of tokens, else target, layer and test
    reason     why, in words; `words` and `sentence` begin with the kind
    """

    kind: Kind
    bound: float | None = None
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    n: int | None = None
    alpha: float = R.ALPHA
    margin: float | None = None
    tested: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    where: str = ""
    reason: str = ""
    dependent: bool = False
    within: bool = False
    require: Required = "certified"

    @property
    def exit_code(self) -> int:
        """0: what is required or better, 1: lossy, 2: inconclusive, or less than what is required."""
        if self.kind == "lossy":
            return 1
        return 0 if self.kind in ("certified", self.require) else 2

    @property
    def outcome(self) -> str:
        """What the exit code means, in a line: passed, failed or not decided, and the sentence."""
        if self.kind == "consistent" and self.exit_code:
            return f"not decided: {self.sentence}; certified is required"
        return f"{('passed', 'failed', 'not decided')[self.exit_code]}: {self.sentence}"

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        if self.within and self.kind != "inconclusive":
            return WITHIN if self.kind == "certified" else "differs by more than eps"
        if self.dependent and self.kind == "lossy":
            return "lossy: rows depend on each other"
        if self.kind == "lossy":
            return "lossy: TV not measured" if self.estimate is None else f"lossy: TV = {self.estimate:.4f}"
        return "certified lossless" if self.kind == "certified" else self.kind

    @property
    def pill(self) -> str:
        """The words for a badge, with the bound if nothing was rejected."""
        if self.kind in ("certified", "consistent") and self.bound is not None:
            return f"{self.words}, TV <= {self.bound:.3f}"
        return self.words

    @property
    def sentence(self) -> str:
        """The words and the reason."""
        return f"{self.words}: {self.reason}" if self.reason else self.words

    def json(self) -> dict[str, Any]:
        """Return the fields as plain values, with `words` and `exit_code`."""
        return asdict(self) | {"words": self.words, "exit_code": self.exit_code}

    def contradicts(self, claim: str) -> bool:
        """Return whether the verdict contradicts a claim: "lossless", "lossy" or WITHIN."""
        if self.within:
            return self.kind == "lossy" and claim == WITHIN
        return self.kind == {"lossless": "lossy", WITHIN: "lossy", "lossy": "certified"}.get(claim)


def adjust_missing(rows: Iterable[Row], alpha: float) -> list[Row]:
    """Copy rows of any decoders and layers, and correct the families of which a row that decides has no p_holm: paired
    rows are made one score at a time. A family is a decoder's deciding rows of one layer and repeat."""
    rows = list(rows)

    def get_family(r: Row) -> tuple[Any, ...]:
        return r["method"], r["key"], r["layer"], r["repeat"]

    deciding = (r for r in rows if r["decides"] and r["p_value"] is not None)
    missing = {get_family(r) for r in deciding if r["p_holm"] is None}
    return R.adjust_families(rows, lambda r: f if r["decides"] and (f := get_family(r)) in missing else None, alpha)


def compute_layer_p(rows: Iterable[Row], alpha: float) -> float | None:
    """Compute a decoder's p-value in a layer, the smallest p_holm of its deciding rows, corrected where it is missing
    (`adjust_missing`); None if none was run."""
    run = (r for r in adjust_missing(rows, alpha) if r["decides"] and r["p_value"] is not None)
    return min((r["p_holm"] for r in run), default=None)


def judge_decoders(
    rows: Iterable[Row], claims: Mapping[str, str], margin: float, alpha: float = R.ALPHA
) -> list[dict[str, Any]]:
    """Judge each decoder, a (method, key) of the rows; claims: by key or method. Returns a dict each: method, key,
    claim, minimum_detectable_effect, rejected_by, p_decoders (p by layer, corrected twice), `make_columns`."""
    rows = [r for r in rows if r["layer"] not in ("mutants", "calibration")]
    decoders = list(dict.fromkeys((r["method"], r["key"]) for r in rows))
    runs: dict[tuple[str, str], dict[str, Runs]] = {d: {} for d in decoders}
    adjusted: dict[tuple[str, str], dict[str, float]] = {d: {} for d in decoders}
    for layer in dict.fromkeys(r["layer"] for r in rows):
        for d in decoders:
            of_layer = [r for r in rows if (r["method"], r["key"]) == d and r["layer"] == layer]
            runs[d][layer] = [r for r in of_layer if r["repeat"] == 0], [r for r in of_layer if r["repeat"] > 0]
        ps = {d: p for d in decoders if (p := compute_layer_p(runs[d][layer][0], alpha)) is not None}
        for d, p in zip(ps, R.holm(list(ps.values())), strict=True):
            adjusted[d][layer] = float(p)
    result = []
    for method, key in decoders:
        layers = adjusted[method, key]
        p_of = dict(zip(layers, R.holm(list(layers.values())).tolist(), strict=True))
        certificates = [r for r in runs[method, key].get("exact", ([],))[0] if r["test"] == "TV certificate"]
        value = judge_decoder(p_of, runs[method, key], certificates, margin, alpha)
        claim = claims.get(key, claims.get(method, ""))
        effect = max((r["minimum_detectable_effect"] for r in certificates), default=None)
        columns = {"method": method, "key": key, "claim": claim, "minimum_detectable_effect": effect}
        columns |= {"rejected_by": [layer for layer, p in p_of.items() if p <= alpha], "p_decoders": p_of}
        result.append(columns | make_columns(value, claim))
    return result


def make_columns(value: Verdict, claim: str) -> dict[str, Any]:
    """Make a table's columns from a verdict: the value, its fields and words, and whether it contradicts the claim."""
    low, high = value.interval or (None, None)
    return {
        "value": value, "verdict": value.words, "verdict_kind": value.kind, "mismatch": value.contradicts(claim),
        "tv_bound": value.bound, "tv": value.estimate, "tv_low": low, "tv_high": high, "note": value.reason,
    }  # fmt: skip


def judge_decoder(
    p_of: Mapping[str, float], runs: Mapping[str, Runs], certificates: list[Row], margin: float, alpha: float
) -> Verdict:
    """Judge one decoder. p_of: its p-value by layer, after both corrections; runs: its rows by layer; certificates: the
    TV certificates of the exact layer, if it was run."""
    rejected = [layer for layer, p in p_of.items() if p <= alpha]
    repeated = {layer: 0.0 if layer == CERTAIN else compute_layer_p(runs[layer][1], alpha) for layer in rejected}
    unrepeated = [layer for layer, p in repeated.items() if p is None]
    confirmed = [layer for layer, p in repeated.items() if p is not None and p <= alpha]
    bound = max((r["effect"] for r in certificates), default=None)
    n = min((r["n"] for r in certificates), default=None)
    about: dict[str, Any] = {"bound": bound, "n": n, "alpha": alpha, "margin": margin, "tested": tuple(p_of)}
    # the target whose fault is surest, not the one whose estimate is noisiest
    worst = max(certificates, key=lambda r: (r["tv_low"], r["tv"]), default=None)
    confidence = "" if worst is None else R.describe_confidence(worst["alpha"])
    interval = None if worst is None else (worst["tv_low"], worst["tv_high"])
    measured = {"estimate": worst and worst["tv"], "interval": interval}

    def make_verdict(kind: Kind, reason: str, **values: Any) -> Verdict:
        """Make a verdict with the numbers measured; `values` replace them."""
        return Verdict(kind, reason=reason, **about | measured | values)

    path = next((r for r in runs.get(CERTAIN, ([],))[0] if "psnr" in r), None)
    if path is not None and confirmed in ([], [CERTAIN]) and not unrepeated:
        return make_verdict("lossy" if confirmed else "certified", path["note"], within=True)
    if "exact" in confirmed and worst is not None:
        target = worst["model"]
        limits = f"{worst['tv_low']:.4f} to {worst['tv_high']:.4f}"
        return make_verdict("lossy", f"on {target}, {confidence} interval {limits}", where=target)
    if confirmed:
        layer = min(confirmed, key=lambda layer: p_of[layer])
        deciding = [r for r in runs[layer][0] if r["decides"] and r["p_value"] is not None]
        row = min(deciding, key=lambda r: r["p_value"])
        test = f"{layer}: {row['test']}"
        effect = "" if row["effect"] is None else f", effect {row['effect']:.3g}"
        limits = f", {row['low']:.3g} to {row['high']:.3g}" if "low" in row else ""
        return make_verdict("lossy", f"rejected by {test}{effect}{limits}", where=test, estimate=None, interval=None)
    if unrepeated:
        advice = "decode again on a fresh seed (repeat: true) to tell chance from fault"
        return make_verdict("inconclusive", f"rejected by {', '.join(unrepeated)} once; {advice}")
    if rejected:
        advice = "run again on other seeds, with more samples"
        return make_verdict("inconclusive", f"rejected by {', '.join(rejected)}, but not on the fresh seed; {advice}")
    if worst is not None and worst["tv_low"] > 0:
        limits = f"{worst['tv_low']:.4f} to {worst['tv_high']:.4f}"
        problem = f"the {confidence} interval of the TV on {worst['model']}, {limits}, excludes 0, but no test rejects"
        return make_verdict("inconclusive", f"{problem}; run again with more samples", where=worst["model"])
    if not p_of:
        return make_verdict("inconclusive", "no test could be run: more samples are needed")
    if bound is not None and bound <= margin and "exact" in p_of:
        targets = " on each target" * (len(certificates) > 1)
        return make_verdict("certified", f"TV <= {bound:.4f} ({confidence}){targets}")
    if bound is not None:
        effect = max(r["minimum_detectable_effect"] for r in certificates)
        limits = f"TV bound {bound:.4f} is above the margin {margin:g}; TV below {effect:.4f} could not be found"
        return make_verdict("consistent", f"not rejected; {limits}")
    deciding = [r for first, _ in runs.values() for r in first if r["decides"]]
    stated = any(r["minimum_detectable_effect"] is not None for r in deciding)
    hint = "; see the rows for the minimum detectable effects" if stated else ""
    return make_verdict("consistent", f"not rejected in {', '.join(p_of)}{hint}")
