"""Inception Score (Salimans et al. 2016): sure of each, of all kinds. Of embedded models with the classifier of our own
classes in Inception's place."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.metrics.missing_reasons import absent

KINDS = ("continuous", "discrete")
MEASURES = {"is": ("IS", "", "higher")}


def inception_score(logits: Tensor, splits: int) -> tuple[float, float]:
    """Mean and standard deviation of exp E KL(p(y|x) || p(y)) over shuffled splits of logits [n, classes];
    torch-fidelity's value."""
    n = len(logits)
    logits = logits[np.random.RandomState(2020).permutation(n)].double()
    p, log_p, scores = logits.softmax(1), logits.log_softmax(1), []
    for i in range(splits):
        part = slice(i * n // splits, (i + 1) * n // splits)
        marginal = p[part].mean(0, keepdim=True)
        scores.append((p[part] * (log_p[part] - marginal.log())).sum(1).mean().exp().item())
    return float(np.mean(scores)), float(np.std(scores))


def measure(sample: Any) -> dict[str, Any]:
    """A split for every hundred images, ten at most."""
    if "logits" not in sample.seen:
        return absent(sample, "logits", MEASURES)
    logits = torch.from_numpy(sample.seen["logits"])
    mean, sd = inception_score(logits, max(1, min(10, len(logits) // 100)))
    return {"is": mean, "is_sd": sd}
