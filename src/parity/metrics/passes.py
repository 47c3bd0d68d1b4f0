"""How much work the pictures of a discrete model took: passes of the target and tokens evaluated, counted. For seconds
see `speed`."""

from typing import Any

import numpy as np

from parity.metrics.standard_errors import bootstrap_interval, mean_and_error

KINDS = ("discrete",)
MEASURES = {
    "step_compression": ("step compression", "tokens per pass", "higher"),
    "nfe": ("passes per image", "", "lower"),
    "nodes_per_pass": ("tokens evaluated per pass", "", "none"),
    "nodes_per_token": ("tokens evaluated per token kept", "", "lower"),
    "tokens": ("tokens per image", "", "none"),
}


def free_tokens(step: np.ndarray, forced: np.ndarray | None = None) -> np.ndarray:
    """[n] tokens the model chose, of step [n, L]; forced [L] bool marks those of the grammar, which cost no choice
    whatever pass filled them in."""
    chosen = step > 0
    return (chosen if forced is None else chosen & ~forced).sum(1)


def rows(sample: Any) -> dict[str, Any]:
    shard = sample.shard
    kept = [k[k > 0].tolist() for k in shard.kept]
    return {"nfe": shard.nfe, "nodes": shard.nodes, "kept": kept, "step": shard.step.tolist()}


def measure(sample: Any) -> dict[str, float]:
    """Means over images, `_se` a standard error by prompt. Step compression is free tokens per pass (Teng et al. 2024,
    sec. 5), its `_low` and `_high` bound a 95% interval."""
    shard, free = sample.shard, free_tokens(sample.shard.step, sample.forced)
    columns = {"nfe": shard.nfe, "nodes_per_pass": shard.nodes / shard.nfe, "nodes_per_token": shard.nodes / free}
    figures = {"tokens": float(free.mean())}
    for name, values in columns.items():
        figures[name], figures[f"{name}_se"] = mean_and_error(values, sample.groups)
    ratio = free / shard.nfe
    low, high = bootstrap_interval(ratio, sample.groups)
    interval = {"step_compression_low": low, "step_compression_high": high}
    return figures | {"step_compression": float(ratio.mean()), **interval}
