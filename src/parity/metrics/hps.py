"""Human preference score v2 (Wu et al. 2023): the cosine of picture and prompt under a CLIP-H that was trained on which
pictures people preferred. Which version is in the weights (v2.1: HPS_v2.1_compressed.pt)."""

from typing import Any

import numpy as np

from parity.metrics.missing_reasons import absent
from parity.metrics.standard_errors import mean_and_error

KINDS = ("discrete",)
MEASURES = {"hps": ("HPSv2", "", "higher")}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {"hps": sample.seen["hps"]} if "hps" in sample.seen else {}


def measure(sample: Any) -> dict[str, Any]:
    if "hps" not in sample.seen:
        return absent(sample, "hps", MEASURES)
    mean, error = mean_and_error(sample.seen["hps"], sample.groups)
    return {"hps": mean, "hps_se": error}
