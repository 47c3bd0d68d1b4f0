"""How much work a cell took and how long: counted passes beside measured seconds, never one for the other."""

from typing import Any

import numpy as np

from parity.base.files import Shard
from parity.metrics.spread import bootstrap_interval, mean_and_error, prompt_groups


def free_tokens(shard: Shard, forced: np.ndarray | None = None) -> np.ndarray:
    """[n] tokens the model chose; forced [L] bool marks those of the grammar, which cost no choice whatever pass filled them in."""
    chosen = shard.step > 0
    return (chosen if forced is None else chosen & ~forced).sum(1)


def batches(shard: Shard) -> np.ndarray:
    """[n] int: the batch of each row, from the clock: rows of one batch are neighbours and share its seconds."""
    change = np.ones(len(shard.ids), dtype=bool)
    change[1:] = (
        (shard.seconds[1:] != shard.seconds[:-1])
        | (shard.passes[1:] != shard.passes[:-1])
        | (shard.batch[1:] != shard.batch[:-1])
    )
    return change.cumsum() - 1


def step_compression(shard: Shard, forced: np.ndarray | None = None) -> np.ndarray:
    """[n] free tokens per target pass (Teng et al. 2024, sec. 5)."""
    return free_tokens(shard, forced) / shard.nfe


def speed(shard: Shard, forced: np.ndarray | None = None) -> dict[str, Any]:
    """Flat figures: `_se` is a standard error, `_low` and `_high` bound a 95% interval, `_q1`, `_q3` are quartiles over batches.

    Counts vary by prompt; times are one observation a batch, however many images it holds.
    """
    prompts, batch, free = prompt_groups(shard.ids), batches(shard), free_tokens(shard, forced)
    found: dict[str, Any] = {"tokens": float(free.mean())}
    for name, values in {
        "nfe": shard.nfe,
        "nodes_per_pass": shard.nodes / shard.nfe,
        "nodes_per_token": shard.nodes / free,
    }.items():
        found[name], found[f"{name}_se"] = mean_and_error(values, prompts)
    ratio = step_compression(shard, forced)
    found["step_compression"] = float(ratio.mean())
    found["step_compression_low"], found["step_compression_high"] = bootstrap_interval(ratio, prompts)
    found["seconds_per_image"], found["seconds_per_image_se"] = mean_and_error(shard.seconds / shard.batch, batch)
    first = np.unique(batch, return_index=True)[1]
    seconds, rows, passes = shard.seconds[first], shard.batch[first], shard.passes[first]
    made = np.bincount(batch, free)  # a batch cut by the end of the shard still counts what it made
    rate = made / seconds
    found["tokens_per_second"], found["tokens_per_second_se"] = (
        float(made.sum() / seconds.sum()),
        _ratio_error(made, seconds),
    )
    forward = 1000 * seconds / passes
    found["ms_per_forward"], found["ms_per_forward_se"] = (
        float(1000 * seconds.sum() / passes.sum()),
        1000 * _ratio_error(seconds, passes),
    )
    for name, values in {
        "seconds_per_image": seconds / rows,
        "ms_per_forward": forward,
        "tokens_per_second": rate,
    }.items():
        found[f"{name}_q1"], found[f"{name}_median"], found[f"{name}_q3"] = (
            float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])
        )
    found["batch"], found["batches"] = int(rows.max()), len(first)
    found["device"], found["dtype"] = (
        str(shard.provenance.get("device", "unknown")),
        str(shard.provenance.get("dtype", "unknown")),
    )
    return found


def _ratio_error(above: np.ndarray, below: np.ndarray) -> float:
    """Standard error of sum(above) / sum(below) over batches, by linearisation; NaN for a single batch."""
    count = len(above)
    if count < 2:
        return float("nan")
    residual = above - above.sum() / below.sum() * below
    return float(np.sqrt((residual**2).sum() * count / (count - 1)) / below.sum())
