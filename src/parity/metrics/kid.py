"""Kernel distance (Binkowski et al. 2018): unbiased, so it also stands where n is below the dimension and FID's covariance is singular."""

import numpy as np
import torch
from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric


def kid_and_error(
    features: np.ndarray, reference: np.ndarray, subsets: int = 100, seed: int = 0
) -> tuple[float, float]:
    """Mean of the cubic-kernel MMD^2 over random subsets of both sides [n, d], and its standard error.

    A subset holds half of the smaller side (at most 1000 rows): at full size all subsets were the same and had no spread. Halves drawn
    without replacement make the subsets' standard deviation, rescaled, a delete-half jackknife error of both samples together.
    """
    n = min(len(features), len(reference))
    size = min(1000, n // 2)
    if size < 2:
        raise ValueError(f"features: {n} rows on the smaller side; allowed: 4 or more")
    found = kid_features_to_metric(
        torch.from_numpy(np.asarray(features, dtype=np.float64)),
        torch.from_numpy(np.asarray(reference, dtype=np.float64)),
        kid_subsets=subsets,
        kid_subset_size=size,
        rng_seed=seed,
        verbose=False,
    )
    return found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD] * float(np.sqrt(size / (n - size)))
