"""Kernel distance (Binkowski et al. 2018): unbiased, so it also stands where n is below the dimension and FID's
covariance is singular."""

from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.metrics.missing_reasons import absent

KINDS = ("discrete",)
MEASURES = {"kid": ("KID", "", "lower")}


def squared_mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Unbiased estimate of the squared MMD of x and y, each [m, d], under the kernel (x.y / d + 1)^3."""
    m = len(x)
    among_x, among_y, across = ((np.matmul(a, b.T) * (1 / x.shape[1]) + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))
    within = sum((k.sum(axis=1) - np.diagonal(k)).sum() for k in (among_x, among_y))
    return within / (m * (m - 1)) - 2 * across.sum(axis=0).sum() / (m * m)


def kid_and_error(
    features: np.ndarray, reference: np.ndarray, subsets: int = 100, seed: int = 0
) -> tuple[float, float]:
    """Mean of the cubic-kernel MMD^2 over random subsets of both sides [n, d], and its standard error; the mean is
    torch-fidelity's.

    A subset holds half of the smaller side (at most 1000 rows): at full size all subsets were the same and had no
    spread. Halves drawn without replacement make the subsets' standard deviation, rescaled, a delete-half jackknife
    error of both samples together.
    """
    n = min(len(features), len(reference))
    size = min(1000, n // 2)
    if size < 2:
        raise ParityError(f"features: {n} rows on the smaller side; allowed: 4 or more")
    x, y = (np.asarray(a, dtype=np.float64) for a in (features, reference))
    rng = np.random.RandomState(seed)
    values = [
        squared_mmd(x[rng.choice(len(x), size, replace=False)], y[rng.choice(len(y), size, replace=False)])
        for _ in range(subsets)
    ]
    return float(np.mean(values)), float(np.std(values)) * float(np.sqrt(size / (n - size)))


def measure(sample: Any) -> dict[str, Any]:
    own, real = sample.seen.get("features"), sample.compared.get("features")
    if own is None or real is None:
        return absent(sample, "features", MEASURES)
    value, error = kid_and_error(own, real)
    return {"kid": value, "kid_se": error}
