"""Which fault fits a rejected sampler: the likeliest named one, with its likelihood ratio, or none of these.

    diagnosis(counts [K * V^L], law, suspects) -> {"says", "name", "log_likelihood_ratio", "fits", "others"}

The likelihood of a fault is the multinomial one of its predicted law. A fault with variants (a temperature, a
permutation) has the average of theirs. The likeliest is named if the samples do not reject its own law (joint G,
simulated, at FITS); otherwise the answer is "none of these", with the nearest.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from parity_certify.faults import Suspect
from parity_certify.laws import Law

FITS = 1e-3
NEARLY = 1e-3  # weight of the even law in every prediction: nothing is impossible
CLOSE = math.log(20)  # names whose likelihoods are within this of the best are given too


def log_likelihood(counts: np.ndarray, law: np.ndarray) -> float:
    """Of counts [K, C] under laws [K, C], a little of the even law mixed in."""
    return float((counts * np.log((1 - NEARLY) * law + NEARLY / law.shape[-1])).sum())


def fits(counts: np.ndarray, law: np.ndarray, rng: np.random.Generator, draws: int = 1999) -> float:
    """Monte-Carlo p-value of counts [K, C] under laws [K, C] (joint G, even law mixed in)."""
    soft = (1 - NEARLY) * law + NEARLY / law.shape[-1]
    soft = soft / soft.sum(-1, keepdims=True)
    total = counts.sum(-1)

    def g(c: np.ndarray) -> np.ndarray:
        expected = soft * total[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * np.where(c > 0, c * np.log(c / np.maximum(expected, 1e-300)), 0).sum((-1, -2))

    null = np.stack([rng.multinomial(n, p, size=draws) for n, p in zip(total, soft, strict=True)], 1)
    return float((1 + (g(null) >= g(counts)).sum()) / (1 + draws))


def diagnosis(counts: np.ndarray, law: Law, suspects: Sequence[Suspect], seed: int = 0) -> dict[str, Any]:
    """What fits; see above. `others` are names whose likelihood is within 1 to 20 of the best."""
    own = counts.reshape(len(law.prompts), -1)
    base = log_likelihood(own, law.joint)
    scores: dict[str, list[float]] = {}
    laws: dict[str, tuple[float, np.ndarray]] = {}
    for s in suspects:
        predicted = s.law()
        value = log_likelihood(own, predicted)
        scores.setdefault(s.name, []).append(value - math.log(s.variants))
        if s.name not in laws or value > laws[s.name][0]:
            laws[s.name] = value, predicted
    if not scores:
        return {"says": "no fault could be predicted (the draft's law is not known)", "name": None, "fits": None}
    ratio = {name: float(np.logaddexp.reduce(v)) - base for name, v in scores.items()}
    best = max(ratio, key=lambda name: ratio[name])
    p = fits(own, laws[best][1], np.random.default_rng(seed))
    others = sorted((n for n in ratio if n != best and ratio[best] - ratio[n] < CLOSE), key=lambda n: -ratio[n])
    named = p > FITS and ratio[best] > CLOSE
    power = f"likelihood ratio 10^{ratio[best] / math.log(10):.1f} against a correct sampler"
    says = f"{best} ({power}; the samples fit it, p = {p:.2g})"
    if not named:
        says = f"none of these faults (nearest: {best}, {power}, but the samples do not fit it, p = {p:.2g})"
    if named and others:
        says += f"; as likely within a factor of 20: {', '.join(others)}"
    found = {"says": says, "name": best if named else None, "nearest": best, "fits": p, "others": others}
    return found | {"log_likelihood_ratio": ratio[best]}
