"""CMMD (Jayasumana et al. 2024): the distance of two sets of pictures in CLIP's features, under a Gaussian kernel. It
assumes no Gaussian features, and needs fewer pictures than FID."""

from typing import Any

import numpy as np

from parity.metrics.missing_reasons import absent
from parity.metrics.standard_errors import half_jackknife

KINDS = ("discrete", "continuous")
MEASURES = {"cmmd": ("CMMD", "", "lower")}
WIDTH = 10.0  # of the kernel exp(-|a - b|^2 / (2 WIDTH^2)), and the figure times 1000: both as published
SCALE = 1000.0


def mean_kernel(x: np.ndarray, y: np.ndarray, rows: int = 2048) -> float:
    """Mean of the kernel over all pairs of x [n, d] and y [m, d], by blocks of rows."""
    total = 0.0
    for block in (x[i : i + rows] for i in range(0, len(x), rows)):
        squares = (block**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * block @ y.T
        total += float(np.exp(-squares.clip(min=0) / (2 * WIDTH**2)).sum())
    return total / (len(x) * len(y))


def cmmd(features: np.ndarray, reference: np.ndarray) -> float:
    """1000 times the squared MMD, every pair counted (the biased estimate, as published), of features of unit length
    [n, d] and [m, d]."""
    x, y = (np.asarray(a, dtype=np.float64) for a in (features, reference))
    return SCALE * (mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y))


def measure(sample: Any) -> dict[str, Any]:
    """With a standard error over generated pictures, from halves of them."""
    own, real = sample.seen.get("cmmd"), sample.compared.get("cmmd")
    if own is None or real is None:
        return absent(sample, "cmmd", MEASURES)
    x, y = (np.asarray(a, dtype=np.float64) for a in (own, real))
    among = mean_kernel(y, y)

    def half(rows: np.ndarray) -> np.ndarray:
        return np.array([SCALE * (mean_kernel(x[rows], x[rows]) + among - 2 * mean_kernel(x[rows], y))])

    return {"cmmd": cmmd(own, real), "cmmd_se": float(half_jackknife(half, sample.groups, 20)[0])}
