"""How long a cell took, on the clock of the job that decoded it.

Seconds of two jobs do not compare, because the machine may have done other work: speeds are of the rule `speed`
(`parity.tune.speed`)."""

from typing import Any

import numpy as np

from parity.metrics.estimates import Estimate, mean_and_error, ratio_and_error
from parity.metrics.passes import free_tokens

KINDS = ("discrete", "anysubset", "continuous")
MEASURES = {
    "network_share": ("share of the time that is the networks'", "", "none"),
    "tokens_per_second": ("tokens per second", "measured", "higher"),
    "seconds_per_image": ("seconds per image or text", "measured", "lower"),
    "ms_per_forward": ("ms per forward", "measured", "lower"),
}
REPORTED = "as reported: not measured here"


def batches(shard: Any) -> np.ndarray:
    """Find the number of each row's batch [n], from 0: neighbours of equal seconds, passes and size are one."""
    differ = np.stack([np.diff(column) != 0 for column in (shard.seconds, shard.passes, shard.batch)]).any(0)
    return np.concatenate([[0], differ.cumsum()])


def quartiles(name: str, values: np.ndarray) -> dict[str, float]:
    """Compute `<name>_q1`, `_median` and `_q3` of values, one a batch."""
    ends = np.quantile(values, [0.25, 0.5, 0.75]) if len(values) else np.full(3, np.nan)
    return {f"{name}_{end}": float(q) for end, q in zip(("q1", "median", "q3"), ends, strict=True)}


def rows(sample: Any) -> dict[str, np.ndarray]:
    names = {"batch": "batch", "passes": "passes", "batch_seconds": "seconds"}
    return {name: sample.shard.columns[column] for name, column in names.items()}


def describe_reported(shard: Any) -> dict[str, Any]:
    """Describe the seconds that the makers of a cell's tokens report, under names of their own, because they do not
    compare with measured ones: `reported_seconds` an image, `reported_speedup` over their own plain decoding, and by
    whom and on what (`reported_by`)."""
    about = shard.provenance["made"]
    by = " ".join(f"{word} {about[key]}" for word, key in (("by", "by"), ("on", "device")) if about[key])
    figures: dict[str, Any] = {name: Estimate(why=REPORTED) for name in MEASURES}
    figures |= {"device": about["device"] or "not said", "dtype": "not said", "machine": "not said"}
    figures |= {
        "runs_as": "reported by others",
        "reported_by": by or "not said by whom",
        "batch": int(shard.at_once.max()),
    }
    if shard.lacks("seconds"):
        return figures | {"reported_seconds": Estimate(why="no seconds were reported")}
    first = np.unique(batches(shard), return_index=True)[1]
    own = ratio_and_error(shard.seconds[first], shard.batch[first])
    figures |= {"batches": len(first), "reported_seconds": Estimate(*own)}
    if about["plain"]:
        plain = ratio_and_error(*np.array(about["plain"]).T)
        ratio, share = plain[0] / own[0], np.hypot(plain[1] / plain[0], own[1] / own[0])
        figures["reported_speedup"] = Estimate(ratio, ratio * share)
    return figures


def measure(sample: Any) -> dict[str, Any]:
    """Measure time, a batch being one observation, however many rows it holds: figures have a standard error and
    quartiles over batches."""
    shard = sample.shard
    if shard.is_made:
        return describe_reported(shard)
    batch = batches(shard)
    free = free_tokens(shard.step, sample.forced)
    first = np.unique(batch, return_index=True)[1]
    seconds, size, passes = (x[first] for x in (shard.seconds, shard.batch, shard.passes))
    n_tokens = np.bincount(batch, free)  # if the end of the shard cut a batch, its own rows' tokens count
    figures: dict[str, Any] = {}
    for name, value_and_error, of_batch in (
        ("seconds_per_image", mean_and_error(shard.seconds / shard.batch, batch), seconds / size),
        ("ms_per_forward", ratio_and_error(1000 * seconds, passes), 1000 * seconds / passes),
        ("tokens_per_second", ratio_and_error(n_tokens, seconds), n_tokens / seconds),
    ):
        figures |= {name: Estimate(*value_and_error), **quartiles(name, of_batch)}
    figures["network_share"] = float(shard.network_seconds[first].sum() / seconds.sum())
    made_with = {k: str(shard.provenance.get(k, "unknown")) for k in ("device", "dtype", "machine")}
    return figures | made_with | {"batch": int(shard.at_once.max()), "batches": len(first)}
