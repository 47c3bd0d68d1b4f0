"""CLIP-score: how well a picture fits its caption."""

import numpy as np

from parity.metrics.spread import mean_and_error


def clip_score(cosine: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Mean raw cosine [n] between picture and caption, neither scaled nor clipped.

    Published figures use other scales: torchmetrics 100 cos, Hessel et al. 2021 2.5 max(cos, 0). The embedded CLIP's cosines compare with
    each other alone.
    """
    mean, error = mean_and_error(cosine, groups)
    return {"clip_score": mean, "clip_score_se": error}
