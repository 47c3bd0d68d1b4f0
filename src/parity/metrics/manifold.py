"""Precision and recall of the k-nearest-neighbour manifolds (Kynkaanniemi et al. 2019).

A rise of precision with a fall of recall is what sharpening looks like: a lossy decoder can improve FID that way.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.errors import ParityError
from parity.metrics.missing_reasons import absent
from parity.metrics.protocols import recipe
from parity.metrics.standard_errors import half_jackknife

KINDS = ("discrete",)
MOST = 10_000  # pictures of a side
MEASURES = {"precision": ("precision", "", "higher"), "recall": ("recall", "", "higher")}


def radii(x: Tensor, k: int) -> Tensor:
    """[n] distance from each of x [n, d] to its k-th neighbour among the others."""
    return torch.cdist(x, x).kthvalue(k + 1).values


def precision_recall(features: np.ndarray, reference: np.ndarray, k: int = 3) -> tuple[float, float]:
    """Share of generated images [n, d] inside the reference manifold, and of reference images inside the generated
    one."""
    fewest = min(len(features), len(reference))
    if fewest <= k:
        raise ParityError(f"features: {fewest} rows on the smaller side; allowed: more than k = {k}")
    x, y = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (features, reference))
    across = torch.cdist(y, x)
    inside, covered = (across <= radii(y, k)[:, None]).any(0), (across <= radii(x, k)).any(1)
    return inside.float().mean().item(), covered.float().mean().item()


def precision_recall_errors(
    features: np.ndarray, reference: np.ndarray, groups: np.ndarray, k: int = 3, count: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Standard errors of both over generated images, the reference held fixed.

    Every distance is computed once; a half-sample is then a selection of rows and columns.
    """
    x, y = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (features, reference))
    among, across = torch.cdist(x, x), torch.cdist(x, y)
    inside = (across <= radii(y, k)).any(1).double()  # [n] in some reference ball

    def half(rows: np.ndarray) -> np.ndarray:
        if len(rows) <= k:
            return np.array([np.nan, np.nan])
        chosen = torch.from_numpy(rows)
        radius = among[chosen][:, chosen].kthvalue(k + 1).values
        covered = (across[chosen] <= radius[:, None]).any(0).double()
        return np.array([inside[chosen].mean().item(), covered.mean().item()])

    precision, recall = half_jackknife(half, groups, count, seed)
    return float(precision), float(recall)


def column_of(protocol: str) -> str:
    """Which of the columns of `metrics.judge_features` a protocol's manifolds are of."""
    named = recipe(protocol).get("manifold", "") if protocol else ""
    return named or "features"


def measure(sample: Any) -> dict[str, Any]:
    """Of the first MOST pictures of either side, `manifold_n` of them where there are more: each is compared with
    each."""
    column = column_of(sample.protocol)
    own, real = sample.seen.get(column), sample.compared.get(column)
    if own is None or real is None:
        return absent(sample, column, MEASURES)
    taken = {"manifold_n": MOST} if max(len(own), len(real)) > MOST else {}
    own, real, groups = own[:MOST], real[:MOST], sample.groups[:MOST]
    figures = precision_recall(own, real) + precision_recall_errors(own, real, groups)
    return dict(zip(("precision", "recall", "precision_se", "recall_se"), figures, strict=True)) | taken
