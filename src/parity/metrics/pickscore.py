"""PickScore (Kirstain et al. 2023): the scaled cosine of picture and prompt under a CLIP-H that was trained on what
users picked; its authors' logits, before any softmax."""

from typing import Any

import numpy as np

from parity.metrics.missing_reasons import absent
from parity.metrics.standard_errors import mean_and_error

KINDS = ("discrete",)
MEASURES = {"pickscore": ("PickScore", "", "higher")}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {"pickscore": sample.seen["pickscore"]} if "pickscore" in sample.seen else {}


def measure(sample: Any) -> dict[str, Any]:
    if "pickscore" not in sample.seen:
        return absent(sample, "pickscore", MEASURES)
    mean, error = mean_and_error(sample.seen["pickscore"], sample.groups)
    return {"pickscore": mean, "pickscore_se": error}
