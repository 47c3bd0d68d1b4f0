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
MOST = 10_000  # at most this many images of either side are compared, each with each
NEAREST = 32  # neighbours of an image that are kept, among which a half-sample has its own
BLOCK = 512  # images whose distances are computed at once
FEWEST = 4  # fewer images have no half of two, nor three neighbours each
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


def find_nearest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the `count` rows nearest to each of n rows x [n, d], itself among them: distances in ascending order and
    numbers of these rows, both [n, count]. Distances are computed by blocks of rows."""
    nearest = [torch.cdist(rows, x).topk(count, largest=False) for rows in x.split(BLOCK)]
    return torch.cat([found.values for found in nearest]), torch.cat([found.indices for found in nearest])


def precision_recall(
    features: np.ndarray, reference: np.ndarray, groups: np.ndarray, k: int = 3, count: int = 200, seed: int = 0
) -> tuple[Estimate, Estimate]:
    """Compute the share of generated images [n, d] inside the reference manifold, and of reference images inside the
    generated one; their standard errors are over generated images, the reference held fixed.

    Every distance is computed once. A half-sample's k-th neighbour is sought among the NEAREST rows of all, which
    nearly always hold it.
    """
    fewest = min(len(features), len(reference))
    if fewest <= k:
        raise ParityError(f"features: {fewest} rows on the smaller side; allowed: more than k = {k}")
    x, y = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (features, reference))
    across = torch.cdist(x, y)
    is_precise = (across <= find_nearest(y, k + 1)[0][:, k]).any(1)  # [n]: the image lies in a reference image's ball
    distances, neighbours = find_nearest(x, min(max(NEAREST, k + 1), len(x)))

    def compute_radii(rows: Tensor) -> Tensor:
        """Compute the distance [n] from each of some rows to its k-th neighbour among the others of them; NaN
        elsewhere."""
        chosen = torch.zeros(len(x), dtype=torch.bool)
        chosen[rows] = True
        n_chosen = chosen[neighbours].cumsum(1)
        radii = distances.gather(1, (n_chosen <= k).sum(1, keepdim=True).clamp(max=distances.shape[1] - 1))[:, 0]
        far = (n_chosen[:, -1] <= k) & chosen  # fewer than k neighbours are among the NEAREST
        if far.any():
            radii[far] = torch.cdist(x[far], x[rows]).kthvalue(k + 1).values
        return radii.masked_fill(~chosen, torch.nan)

    def shares(rows: np.ndarray, dtype: torch.dtype = torch.float64) -> np.ndarray:
        """Compute precision and recall of a selection of the generated images; NaN for k or fewer."""
        if len(rows) <= k:
            return np.array([np.nan, np.nan])
        radii, covered = compute_radii(torch.from_numpy(rows)), torch.zeros(len(y), dtype=torch.bool)
        for some, reach in zip(across.split(BLOCK), radii.split(BLOCK), strict=True):
            covered |= (some <= reach[:, None]).any(0)
        return np.array([share.to(dtype).mean().item() for share in (is_precise[rows], covered)])

    values = shares(np.arange(len(x)), torch.float32)  # in float32 the values are torch-fidelity's to the bit
    errors = half_jackknife(shares, groups, count, seed)
    precision, recall = (Estimate(float(v), float(e)) for v, e in zip(values, errors, strict=True))
    return precision, recall


def measure(sample: Any) -> dict[str, Any]:
    return {**measure_kid(sample), **measure_manifold(sample)}


def measure_kid(sample: Any) -> dict[str, Any]:
    """Measure KID with its error; an estimate with the reason, if features lack or a side has too few images."""
    features, real = sample.outputs.get("features"), sample.reference_outputs.get("features")
    if features is None or real is None:
        return explain_absent(sample, "features", ["kid"])
    if reason := explain_few(len(features), len(real), FEWEST):
        return {"kid": Estimate(why=reason)}
    return {"kid": Estimate(*kid_and_error(features, real))}


def measure_manifold(sample: Any) -> dict[str, Any]:
    """Measure precision and recall of the first MOST images of either side, as each is compared with each; with
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
