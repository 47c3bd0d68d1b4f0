"""Precision and recall of the k-nearest-neighbour manifolds (Kynkaanniemi et al. 2019), by torch-fidelity.

A rise of precision with a fall of recall is what sharpening looks like: a lossy decoder can improve FID that way.
"""

import numpy as np
import torch
from torch_fidelity.metric_prc import prc_features_to_metric

from parity.metrics.spread import half_jackknife


def precision_recall(features: np.ndarray, reference: np.ndarray, k: int = 3) -> tuple[float, float]:
    """Share of generated images [n, d] inside the reference manifold, and of reference images inside the generated one."""
    if min(len(features), len(reference)) <= k:
        raise ValueError(
            f"features: {min(len(features), len(reference))} rows on the smaller side; allowed: more than k = {k}"
        )
    found = (
        prc_features_to_metric(  # input 1 is the generated side since torch-fidelity 0.4.0; the betas had them swapped
            torch.from_numpy(np.asarray(features, dtype=np.float64)),
            torch.from_numpy(np.asarray(reference, dtype=np.float64)),
            prc_neighborhood=k,
            prc_batch_size=10_000,
            save_cpu_ram=False,
            verbose=False,
        )
    )
    return found["precision"], found["recall"]


def precision_recall_errors(
    features: np.ndarray, reference: np.ndarray, groups: np.ndarray, k: int = 3, count: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Standard errors of both over generated images, the reference held fixed.

    Every distance is computed once; a half-sample is then a selection of rows and columns.
    """
    x, y = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (features, reference))
    among, across = torch.cdist(x, x), torch.cdist(x, y)
    inside = (across <= torch.cdist(y, y).kthvalue(k + 1).values).any(1).double()  # [n] in some reference ball

    def half(rows: np.ndarray) -> np.ndarray:
        if len(rows) <= k:
            return np.array([np.nan, np.nan])
        chosen = torch.from_numpy(rows)
        radius = among[chosen][:, chosen].kthvalue(k + 1).values
        covered = (across[chosen] <= radius[:, None]).any(0).double()
        return np.array([inside[chosen].mean().item(), covered.mean().item()])

    precision, recall = half_jackknife(half, groups, count, seed)
    return float(precision), float(recall)
