"""Where the time of continuous tokens goes: the network, its head, the test of drafts. Mean seconds an image."""

from typing import Any

import numpy as np

KINDS = ("continuous",)
MEASURES = {
    "seconds": ("seconds per image", "measured", "lower"),
    "head_share": ("share of the head", "", "none"),
    "test_share": ("share of the test of drafts", "", "none"),
}
PARTS = {"head": ("_head_",), "network": ("_network_",), "test": ("_density_", "_residual_")}


def measure(sample: Any) -> dict[str, Any]:
    """Shares of head and network are of these two; of the test, of the whole, where there are drafts."""
    times = {name: float(np.mean(spent)) for name, spent in sample.costs.items() if name.endswith("_seconds")}
    head, network, test = (
        sum(spent for name, spent in times.items() if any(part in name for part in parts)) for parts in PARTS.values()
    )
    seconds = float((sample.shard.seconds / sample.shard.batch).mean())
    return {
        "seconds": seconds,
        **{name: times.get(name) for name in ("target_network_seconds", "target_head_seconds")},
        "head_share": head / (head + network) if head + network else None,
        "test_seconds": test,
        "test_share": test / seconds if (sample.shard.accepted >= 0).any() else None,
    }
