"""A verdict is a value; and the verdict on each decoder, from the rows of all layers.

    verdicts(rows, claims={"sjd": "lossless", ...}, margin=0.01) -> dicts, one a (method, key); claims by key or method

Each dict holds the `Verdict` under "value"; its other columns are made from that (`columns_of`).

    certified lossless   the exact layer's TV bound is below `margin` on every target, and no layer rejects
    consistent           no layer rejects, but the bound is not below the margin, or the exact layer was not run; with
                         the minimum detectable effect
    lossy: TV = x        a layer rejects, and rejects again on a fresh seed; x without the plug-in's bias
                         (`counts.tv_estimate`), with its interval, if the exact layer measured it, else the layer
                         that rejected, with its effect
    equal within eps     a decoder that follows plain decoding's own path came within its tolerance of it, pathwise;
                         if it did not: differs by more than eps
    inconclusive         nothing was tested, or a rejection did not repeat or was not repeated

Within a layer a decoder's p-value is the smallest p_holm of its deciding rows (repeat 0); Holm over decoders follows,
then Holm over the layers of one decoder, so that a correct one is rejected anywhere with probability alpha at most.
Rows of repeats confirm a rejection and never replace it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from parity_certify import result_rows as R
from parity_certify.result_rows import Row

Judged = dict[str, Any]
Decoder = tuple[str, str]  # method, key
Runs = tuple[list[Row], list[Row]]  # of one layer: the run itself, its repeats
CERTAIN = "pathwise"  # compares tokens: a difference is no matter of chance
WITHIN = "equal within eps"
Kind = Literal["certified", "consistent", "lossy", "inconclusive"]
EXIT: dict[Kind, int] = {"certified": 0, "consistent": 0, "lossy": 1, "inconclusive": 2}


@dataclass(frozen=True)
class Verdict:
    """What was found. Sentences, pills, badges, JSON and exit codes are made from it; nothing reads one out of a text.

    kind       certified: the bound is below the margin, nothing rejects; consistent: nothing rejects; lossy: rejected
               on two seeds; inconclusive: nothing was tested, or a rejection did not repeat
    bound      upper bound on the TV at 95 %, over all targets, None where no joint law was counted
    estimate   of the TV on the target that differs most, corrected; interval: its 95 % interval
    n          sequences of the smallest sample that the bound stands on
    dependent  rows depend on each other, although each alone may have the right law
    within     the claim was equality within a tolerance, on the baseline's own path
    tested, untested   what was, and what was not
    where      where it fails: target, layer and test
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

    @property
    def exit_code(self) -> int:
        return EXIT[self.kind]

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
        """For a badge: the words, with the bound where nothing was rejected."""
        if self.exit_code == 0 and self.bound is not None:
            return f"{self.words}, TV <= {self.bound:.3f}"
        return self.words

    @property
    def sentence(self) -> str:
        return f"{self.words}: {self.reason}" if self.reason else self.words

    def json(self) -> dict[str, Any]:
        """Plain values, with the words and the exit code that are made from them."""
        return asdict(self) | {"words": self.words, "exit_code": self.exit_code}

    def breaks(self, claim: str) -> bool:
        """Whether it contradicts what a decoder claims: "lossless", "lossy" or WITHIN."""
        if self.within:
            return self.kind == "lossy" and claim == WITHIN
        return self.kind == {"lossless": "lossy", WITHIN: "lossy", "lossy": "certified"}.get(claim)


def layer_p(rows: list[Row]) -> float | None:
    """A decoder's p-value in a layer: the smallest p_holm of its deciding rows; None if none was run.

    Rows that come without p_holm (the paired ones, made one score at a time) are given it here, as one family.
    """
    deciding = [r for r in rows if r["decides"] and r["p_value"] is not None]
    if any(r["p_holm"] is None for r in deciding):
        R.family(deciding)
    return min((r["p_holm"] for r in deciding), default=None)


def verdicts(rows: Iterable[Row], claims: Mapping[str, str], margin: float, alpha: float = R.ALPHA) -> list[Judged]:
    """One dict a decoder: method, key, claim, minimum_detectable_effect, rejected_by, p_decoders (layer to p-value
    after both corrections), and what `columns_of` lists."""
    rows = [r for r in rows if r["layer"] not in ("mutants", "calibration")]
    decoders = list(dict.fromkeys((r["method"], r["key"]) for r in rows))
    runs_of: dict[Decoder, dict[str, Runs]] = {d: {} for d in decoders}
    adjusted: dict[Decoder, dict[str, float]] = {d: {} for d in decoders}
    for layer in dict.fromkeys(r["layer"] for r in rows):
        for d in decoders:
            own = [r for r in rows if (r["method"], r["key"]) == d and r["layer"] == layer]
            runs_of[d][layer] = [r for r in own if r["repeat"] == 0], [r for r in own if r["repeat"] > 0]
        ps = {d: p for d in decoders if (p := layer_p(runs_of[d][layer][0])) is not None}
        for d, p in zip(ps, R.holm(list(ps.values())), strict=True):
            adjusted[d][layer] = float(p)
    for d, layers in adjusted.items():
        adjusted[d] = dict(zip(layers, R.holm(list(layers.values())).tolist(), strict=True))
    return [judge(d, adjusted[d], runs_of[d], claims, margin, alpha) for d in decoders]


def judge(
    decoder: Decoder,
    p: Mapping[str, float],
    runs_of: Mapping[str, Runs],
    claims: Mapping[str, str],
    margin: float,
    alpha: float,
) -> Judged:
    """The verdict on one decoder: its p-values by layer, and by layer its rows."""
    method, key = decoder
    rejected = [layer for layer, value in p.items() if value <= alpha]
    value = valued(p, runs_of, rejected, margin, alpha)
    certificates = certified(runs_of)
    reach = max((r["minimum_detectable_effect"] for r in certificates), default=None)
    claim = claims.get(key, claims.get(method, ""))
    return {
        "method": method, "key": key, "claim": claim, "minimum_detectable_effect": reach, "rejected_by": rejected,
        "p_decoders": dict(p), **columns_of(value, claim),
    }  # fmt: skip


def columns_of(value: Verdict, claim: str) -> Judged:
    """A verdict as columns of a table: the value itself, its fields, and the words made of them."""
    low, high = value.interval or (None, None)
    return {
        "value": value, "verdict": value.words, "verdict_kind": value.kind, "mismatch": value.breaks(claim),
        "tv_bound": value.bound, "tv": value.estimate, "tv_low": low, "tv_high": high, "note": value.reason,
    }  # fmt: skip


def certified(runs_of: Mapping[str, Runs]) -> list[Row]:
    """The exact layer's TV certificates, of the run itself."""
    return [r for r in runs_of.get("exact", ([], []))[0] if r["test"] == "TV certificate"]


def valued(
    p: Mapping[str, float], runs_of: Mapping[str, Runs], rejected: list[str], margin: float, alpha: float
) -> Verdict:
    """The verdict as a value: what the layers `rejected` once, again or not again, and the bound otherwise."""
    repeated = {layer: layer_p(runs_of[layer][1]) for layer in rejected}
    confirmed = [
        layer for layer, again in repeated.items() if layer == CERTAIN or (again is not None and again <= alpha)
    ]
    once = [layer for layer, again in repeated.items() if again is None and layer != CERTAIN]
    certificates = certified(runs_of)
    # the surest fault, not the noisiest target
    worst = max(certificates, key=lambda r: (r["tv_low"], r["tv"]), default=None)
    bound = max((r["effect"] for r in certificates), default=None)
    reach = max((r["minimum_detectable_effect"] for r in certificates), default=None)
    n = min((r["n"] for r in certificates), default=None)
    about: dict[str, Any] = {"bound": bound, "n": n, "alpha": alpha, "margin": margin, "tested": tuple(p)}
    if worst is not None:
        about |= {"estimate": worst["tv"], "interval": (worst["tv_low"], worst["tv_high"])}
    path = next((r for r in runs_of.get(CERTAIN, ([], []))[0] if "psnr" in r), None)
    if path is not None and confirmed in ([], [CERTAIN]) and not once:
        kind: Kind = "lossy" if confirmed else "certified"
        return Verdict(kind, within=True, reason=path["note"], **about)
    if confirmed:
        return lossy(confirmed, p, runs_of, worst, about)
    if once:
        again = "decode again on a fresh seed (repeat: true) to tell chance from fault"
        return Verdict("inconclusive", reason=f"rejected by {', '.join(once)} once; {again}", **about)
    if rejected:
        reason = f"rejected by {', '.join(rejected)}, but not on the fresh seed"
        return Verdict("inconclusive", reason=reason, **about)
    if not p:
        return Verdict("inconclusive", reason="no test could be run", **about)
    if bound is not None and bound <= margin and "exact" in p:
        return Verdict("certified", reason=f"TV <= {bound:.4f} (95 %) on each of {len(certificates)} targets", **about)
    if bound is not None:
        above = f"TV bound {bound:.4f} is above the margin {margin:g}"
        return Verdict("consistent", reason=f"not rejected; {above}; TV below {reach:.4f} could not be found", **about)
    deciding = [r for first, _ in runs_of.values() for r in first if r["decides"]]
    stated = any(r["minimum_detectable_effect"] is not None for r in deciding)
    more = "; see the rows for the minimum detectable effects" if stated else ""
    return Verdict("consistent", reason=f"not rejected in {', '.join(p)}{more}", **about)


def lossy(
    confirmed: list[str], p: Mapping[str, float], runs_of: Mapping[str, Runs], worst: Row | None, about: dict[str, Any]
) -> Verdict:
    """The verdict on a decoder that the layers `confirmed` reject; `worst` its certificate of the largest TV."""
    if "exact" in confirmed and worst is not None:
        interval = f"95 % interval {worst['tv_low']:.4f} to {worst['tv_high']:.4f}"
        return Verdict("lossy", where=worst["model"], reason=f"on {worst['model']}, {interval}", **about)
    first = min(confirmed, key=lambda layer: p[layer])
    deciding = (r for r in runs_of[first][0] if r["decides"] and r["p_value"] is not None)
    row = min(deciding, key=lambda r: r["p_value"])
    effect = "" if row["effect"] is None else f", effect {row['effect']:.3g}"
    interval = f", {row['low']:.3g} to {row['high']:.3g}" if "low" in row else ""
    where, none = f"{first}: {row['test']}", {"estimate": None, "interval": None}
    return Verdict("lossy", where=where, reason=f"rejected by {where}{effect}{interval}", **{**about, **none})
