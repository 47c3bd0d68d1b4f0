"""How many calls of the networks an image of continuous tokens waits for, one after another: the rounds of network and
head, of target and draft; and the rows that they compute. Counted, so the same on any machine."""

from typing import Any

import numpy as np

from parity.metrics.standard_errors import means

KINDS = ("continuous",)
MEASURES = {
    "depth": ("calls one after another", "per image", "lower"),
    "target_head_rows": ("rows of the head", "per image", "lower"),
}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(sample.shard.columns[name], dtype=float) for name in MEASURES}


def measure(sample: Any) -> dict[str, Any]:
    return means(**rows(sample))
