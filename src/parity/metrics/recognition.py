"""Share of images in which the classifier reads the class that was asked for."""

from typing import Any

import numpy as np

from parity.metrics.estimates import means

KINDS = ("continuous",)
MEASURES = {"right": ("class accuracy", "", "higher")}


def rows(sample: Any) -> dict[str, Any]:
    return {"class": sample.classes} | ({"right": sample.outputs["right"]} if "right" in sample.outputs else {})


def measure(sample: Any) -> dict[str, Any]:
    """Measure how often the classifier reads the right class, and in `real_accuracy` the same of the real images of
    the reference file; {} without a classifier."""
    if "right" not in sample.outputs:
        return {}
    real = sample.reference_outputs.get("right")
    return means(right=sample.outputs["right"]) | ({} if real is None else {"real_accuracy": float(np.mean(real))})
