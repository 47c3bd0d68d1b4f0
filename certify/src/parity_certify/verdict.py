"""The verdict on each decoder, from the rows of all layers.

    verdicts(rows, claims={"sjd": "lossless", ...}, margin=0.01) -> dicts, one a (method, key); claims by key or method

    certified lossless   the exact layer's TV bound is below `margin` on every target, and no layer rejects
    consistent           no layer rejects, but the bound is not below the margin, or the exact layer was not run; with
                         the minimum detectable effect
    lossy: TV = x        a layer rejects, and rejects again on a fresh seed; x without the plug-in's bias
                         (`counts.tv_estimate`), with its interval, if the exact layer measured it, else the layer
                         that rejected, with its effect
    equal within eps     a decoder that follows plain decoding's own path came within its tolerance of it, pathwise;
                         if it did not: differs by more than eps
    inconclusive         nothing was tested, or a rejection did not repeat or was not repeated

Within a layer a decoder's p-value is the smallest p_holm of its deciding rows (repeat 0); Holm over decoders follows.
Rows of repeats confirm a rejection and never replace it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from parity_certify import rows as R
from parity_certify.rows import Row

Verdict = dict[str, Any]
Decoder = tuple[str, str]  # method, key
Runs = tuple[list[Row], list[Row]]  # of one layer: the run itself, its repeats
CERTAIN = "pathwise"  # compares tokens: a difference is no matter of chance
WITHIN = "equal within eps"


def layer_p(rows: list[Row]) -> float | None:
    """A decoder's p-value in a layer: the smallest p_holm of its deciding rows; None if none was run.

    Rows that come without p_holm (the paired ones, made one score at a time) are given it here, as one family.
    """
    deciding = [r for r in rows if r["decides"] and r["p_value"] is not None]
    if any(r["p_holm"] is None for r in deciding):
        R.family(deciding)
    return min((r["p_holm"] for r in deciding), default=None)


def verdicts(rows: Iterable[Row], claims: Mapping[str, str], margin: float, alpha: float = R.ALPHA) -> list[Verdict]:
    """One dict a decoder: method, key, verdict, claim, mismatch, tv_bound, tv, tv_low, tv_high,
    minimum_detectable_effect, rejected_by, p_decoders (layer to p-value after Holm over decoders), note."""
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
    return [judge(d, adjusted[d], runs_of[d], claims, margin, alpha) for d in decoders]


def judge(
    decoder: Decoder,
    p: Mapping[str, float],
    runs_of: Mapping[str, Runs],
    claims: Mapping[str, str],
    margin: float,
    alpha: float,
) -> Verdict:
    """The verdict on one decoder: its p-values by layer, and by layer its rows."""
    method, key = decoder
    rejected = [layer for layer, value in p.items() if value <= alpha]
    repeated = {layer: layer_p(runs_of[layer][1]) for layer in rejected}
    confirmed = [
        layer for layer, again in repeated.items() if layer == CERTAIN or (again is not None and again <= alpha)
    ]
    once = [layer for layer, again in repeated.items() if again is None and layer != CERTAIN]
    certificates = [r for r in runs_of.get("exact", ([], []))[0] if r["test"] == "TV certificate"]
    # the surest fault, not the noisiest target
    worst = max(certificates, key=lambda r: (r["tv_low"], r["tv"]), default=None)
    bound = max((r["effect"] for r in certificates), default=None)
    reach = max((r["minimum_detectable_effect"] for r in certificates), default=None)
    path = next((r for r in runs_of.get(CERTAIN, ([], []))[0] if "psnr" in r), None)
    if path is not None and confirmed in ([], [CERTAIN]) and not once:
        words, note = path["verdict"], path["note"]
    elif confirmed:
        words, note = lossy(confirmed, p, runs_of, worst)
    elif once:
        words, again = "inconclusive", "decode again on a fresh seed (repeat: true) to tell chance from fault"
        note = f"rejected by {', '.join(once)} once; {again}"
    elif rejected:
        words, note = "inconclusive", f"rejected by {', '.join(rejected)}, but not on the fresh seed"
    elif not p:
        words, note = "inconclusive", "no test could be run"
    elif bound is not None and bound <= margin and "exact" in p:
        words, note = "certified lossless", f"TV <= {bound:.4f} (95 %) on each of {len(certificates)} targets"
    elif bound is not None:
        above = f"TV bound {bound:.4f} is above the margin {margin:g}"
        words, note = "consistent", f"not rejected; {above}; TV below {reach:.4f} could not be found"
    else:
        deciding = [r for first, _ in runs_of.values() for r in first if r["decides"]]
        stated = any(r["minimum_detectable_effect"] is not None for r in deciding)
        words, more = "consistent", "; see the rows for the minimum detectable effects" if stated else ""
        note = f"not rejected in {', '.join(p)}{more}"
    claim = claims.get(key, claims.get(method, ""))
    wrong = {"lossless": words.startswith("lossy"), "lossy": words == "certified lossless"}
    wrong[WITHIN] = words.startswith(("lossy", "differs"))
    tv = {k: worst[k] if worst else None for k in ("tv", "tv_low", "tv_high")}
    return {
        "method": method, "key": key, "verdict": words, "claim": claim, "mismatch": wrong.get(claim, False),
        "tv_bound": bound, **tv, "minimum_detectable_effect": reach, "rejected_by": rejected, "p_decoders": dict(p),
        "note": note,
    }  # fmt: skip


def lossy(
    confirmed: list[str], p: Mapping[str, float], runs_of: Mapping[str, Runs], worst: Row | None
) -> tuple[str, str]:
    """Verdict and note on a decoder that the layers `confirmed` reject; `worst` its certificate of the largest TV."""
    if "exact" in confirmed and worst is not None:
        interval = f"95 % interval {worst['tv_low']:.4f} to {worst['tv_high']:.4f}"
        return f"lossy: TV = {worst['tv']:.4f}", f"on {worst['model']}, {interval}"
    first = min(confirmed, key=lambda layer: p[layer])
    deciding = (r for r in runs_of[first][0] if r["decides"] and r["p_value"] is not None)
    row = min(deciding, key=lambda r: r["p_value"])
    effect = "" if row["effect"] is None else f", effect {row['effect']:.3g}"
    interval = f", {row['low']:.3g} to {row['high']:.3g}" if "low" in row else ""
    return "lossy: TV not measured", f"rejected by {first}: {row['test']}{effect}{interval}"
