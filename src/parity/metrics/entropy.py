"""Entropy of a row's own tokens: what repeats itself has little."""

from typing import Any

import numpy as np

from parity.metrics.standard_errors import means

KINDS = ("anysubset",)
MEASURES = {"entropy": ("entropy", "bits", "none")}


def entropy(tokens: np.ndarray) -> float:
    """Shannon entropy of the token frequencies of one row [N], bits (Guo & Ermon 2025, Eq. 22)."""
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(share * np.log2(share)).sum())


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {"entropy": np.array([entropy(t[:n]) for t, n in zip(sample.shard.tokens, sample.shard.end, strict=True)])}


def measure(sample: Any) -> dict[str, float]:
    return means(entropy=sample.rows["entropy"])
