"""KID, and precision and recall of the k-nearest-neighbour manifolds (Kynkaanniemi et al. 2019).

The kernel distance (Binkowski et al. 2018) is unbiased, also where n is below the dimension and FID's covariance is
singular. Sharpening raises precision and lowers recall: a lossy decoder can improve FID that way."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.errors import ParityError
from parity.metrics.estimates import Estimate, half_jackknife
from parity.metrics.judges import explain_absent, explain_few
from parity.metrics.protocols import recipe

KINDS = ("discrete",)
MOST = 10_000  # at most so many pictures of either side are compared, each with each
FEWEST = 4  # fewer pictures have no half of two, nor three neighbours each
MEASURES = {
    "kid": ("KID", "", "lower"),
    "precision": ("precision", "", "higher"),
    "recall": ("recall", "", "higher"),
}


def squared_mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Estimate the squared MMD of x and y, each [m, d], without bias, under the kernel (x.y / d + 1)^3."""
    m = len(x)
    among_x, among_y, across = ((np.matmul(a, b.T) * (1 / x.shape[1]) + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))
    within = sum((k.sum(axis=1) - np.diagonal(k)).sum() for k in (among_x, among_y))
    return within / (m * (m - 1)) - 2 * across.sum(axis=0).sum() / (m * m)


def kid_and_error(
    features: np.ndarray, reference: np.ndarray, subsets: int = 100, seed: int = 0
) -> tuple[float, float]:
    """Average the cubic-kernel MMD^2 over random subsets of both sides [n, d], with its standard error; the mean is
    torch-fidelity's.

    A subset holds half of the smaller side, at most 1000 rows, drawn without replacement. So the subsets' standard
    deviation, rescaled, is a delete-half jackknife error of both samples together.
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


def radii(distances: Tensor, k: int) -> Tensor:
    """Find the distance [n] from each of n rows to its k-th neighbour among the others, of distances [n, n]."""
    return distances.kthvalue(k + 1).values


def precision_recall(
    features: np.ndarray, reference: np.ndarray, groups: np.ndarray, k: int = 3, count: int = 200, seed: int = 0
) -> tuple[Estimate, Estimate]:
    """Compute the share of generated images [n, d] inside the reference manifold, and of reference images inside the
    generated one; their standard errors are over generated images, the reference held fixed.

    Every distance is computed once; a half-sample is then a selection of rows and columns.
    """
    fewest = min(len(features), len(reference))
    if fewest <= k:
        raise ParityError(f"features: {fewest} rows on the smaller side; allowed: more than k = {k}")
    x, y = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (features, reference))
    within = torch.cdist(x, x)
    across = torch.cdist(x, y)
    is_precise = (across <= radii(torch.cdist(y, y), k)).any(1)  # [n]: the image lies in the ball of a reference image

    def shares(rows: np.ndarray | slice, dtype: torch.dtype = torch.float64) -> np.ndarray:
        """Compute precision and recall of a selection of the generated images; NaN for k or fewer."""
        if len(is_precise[rows]) <= k:
            return np.array([np.nan, np.nan])
        covered = (across[rows] <= radii(within[rows][:, rows], k)[:, None]).any(0)
        return np.array([share.to(dtype).mean().item() for share in (is_precise[rows], covered)])

    values = shares(slice(None), torch.float32)  # in float32 the values are torch-fidelity's to the bit
    errors = half_jackknife(shares, groups, count, seed)
    precision, recall = (Estimate(float(v), float(e)) for v, e in zip(values, errors, strict=True))
    return precision, recall


def measure(sample: Any) -> dict[str, Any]:
    """Measure KID, precision and recall."""
    return {**measure_kid(sample), **measure_manifold(sample)}


def measure_kid(sample: Any) -> dict[str, Any]:
    """Measure KID with its error; an estimate with the reason, if features lack or a side has too few pictures."""
    features, real = sample.outputs.get("features"), sample.reference_outputs.get("features")
    if features is None or real is None:
        return explain_absent(sample, "features", ["kid"])
    if reason := explain_few(len(features), len(real), FEWEST):
        return {"kid": Estimate(why=reason)}
    return {"kid": Estimate(*kid_and_error(features, real))}


def measure_manifold(sample: Any) -> dict[str, Any]:
    """Measure precision and recall of the first MOST pictures of either side, as each is compared with each; with
    `manifold_n` if there are more. The protocol says of which network's features. If missing, estimates with
    reasons."""
    column = recipe(sample.protocol).get("manifold", "features") if sample.protocol else "features"
    features, real = sample.outputs.get(column), sample.reference_outputs.get(column)
    if features is None or real is None:
        return explain_absent(sample, column, ["precision", "recall"])
    if reason := explain_few(len(features), len(real), FEWEST):
        return {"precision": Estimate(why=reason), "recall": Estimate(why=reason)}
    cut = {"manifold_n": MOST} if max(len(features), len(real)) > MOST else {}
    precision, recall = precision_recall(features[:MOST], real[:MOST], sample.groups[:MOST])
    return {"precision": precision, "recall": recall, **cut}
