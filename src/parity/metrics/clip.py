"""CLIP-score: how well a picture fits its caption."""

from typing import Any

import numpy as np

from parity.metrics.spread import mean_and_error

KINDS = ("discrete",)
MEASURES = {"clip_score": ("CLIP-score", "", "higher")}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {"clip": sample.seen["cosine"]} if sample.seen else {}


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {"captions": sample.shard.captions} | ({"cosine": sample.seen["cosine"]} if sample.seen else {})


def measure(sample: Any) -> dict[str, float]:
    """Mean raw cosine between picture and caption, neither scaled nor clipped.

    Published figures use other scales: torchmetrics 100 cos, Hessel et al. 2021 2.5 max(cos, 0). The embedded CLIP's
    cosines compare with each other alone.
    """
    if not sample.seen:
        return {}
    mean, error = mean_and_error(sample.seen["cosine"], sample.groups)
    return {"clip_score": mean, "clip_score_se": error}
