"""Cost of rows of text: evaluations of the model and of a drafter, by text and by missing token."""

from typing import Any

import numpy as np

from parity.metrics.estimates import means

KINDS = ("anysubset",)
MEASURES = {
    "nfe": ("passes per text", "", "lower"),
    "aux": ("drafter calls per text", "", "lower"),
    "nfe_per_token": ("passes per token", "", "lower"),
    "tokens_per_loop": ("tokens per loop", "", "higher"),
    "seconds_per_row": ("seconds per text", "measured", "lower"),
    "seconds_per_pass": ("seconds per pass", "measured", "lower"),
}


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {name: getattr(sample.shard, name) for name in ("nfe", "aux", "loops", "missing")}


def measure(sample: Any) -> dict[str, Any]:
    """Compute means over texts, and ratios of sums; accepted drafts, or None where a method does not count them."""
    shard = sample.shard
    accepted = shard.accepted_drafts
    return means(nfe=shard.nfe, aux=shard.aux) | {
        "nfe_per_token": float(shard.nfe.sum() / shard.missing.sum()),
        "tokens_per_loop": float(shard.missing.sum() / shard.loops.sum()),
        "accepted_drafts": int(accepted.sum()) if (accepted >= 0).all() else None,
        "seconds_per_row": float((shard.seconds / shard.batch).mean()),
        "seconds_per_pass": float((shard.seconds / shard.passes).mean()),
    }
