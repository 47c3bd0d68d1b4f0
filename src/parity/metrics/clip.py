"""CLIP-score: how well a picture fits its caption."""

from typing import Any

import numpy as np

from parity.metrics.missing_reasons import absent
from parity.metrics.standard_errors import mean_and_error

KINDS = ("discrete",)
MEASURES = {"clip_score": ("CLIP-score", "", "higher")}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {"clip": sample.seen["cosine"]} if "cosine" in sample.seen else {}


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {"captions": sample.shard.captions} | ({k: v for k, v in sample.seen.items() if k == "cosine"})


def measure(sample: Any) -> dict[str, Any]:
    """Mean raw cosine between picture and caption, neither scaled nor clipped.

    Published figures use other scales: torchmetrics 100 cos, Hessel et al. 2021 2.5 max(cos, 0). The embedded CLIP's
    cosines compare with each other alone. `clip_cut` is how many captions a published CLIP cut at its 77 tokens.
    """
    if "cosine" not in sample.seen:
        return absent(sample, "cosine", MEASURES)
    mean, error = mean_and_error(sample.seen["cosine"], sample.groups)
    cut = {"clip_cut": int(sample.seen["cut"])} if "cut" in sample.seen else {}
    return {"clip_score": mean, "clip_score_se": error} | cut
