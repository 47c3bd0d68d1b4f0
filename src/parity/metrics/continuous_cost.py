"""Cost of images of continuous tokens: steps and calls of the networks, drafts accepted, and seconds by part.

The depth is how many calls an image waits for, one after another: of network and head, of target and draft. Counts are
the same on any machine."""

import math
from typing import Any

import numpy as np

from parity.metrics.estimates import log_mean, means

KINDS = ("continuous",)
MEASURES = {
    "acceptance": ("share of drafts accepted", "", "none"),
    "distance": ("distance of draft and target", "", "lower"),
    "two_paths_ratio": ("mean likelihood ratio of drafts", "", "none"),
    "steps": ("steps per image", "", "lower"),
    "target_conditions": ("target evaluations", "", "lower"),
    "draft_conditions": ("draft evaluations", "", "lower"),
    "tries": ("tries of the residual sampler", "", "lower"),
    "gave_up": ("times it gave up", "", "lower"),
    "depth": ("calls one after another", "per image", "lower"),
    "target_head_rows": ("rows of the head", "per image", "lower"),
    "seconds": ("seconds per image", "measured", "lower"),
    "target_seconds": ("seconds of the target's networks", "measured", "lower"),
    "resampling_seconds": ("seconds of draws from the residual", "measured", "lower"),
    "head_share": ("share of the head", "", "none"),
    "test_share": ("share of the test of drafts", "", "none"),
}
LARGEST = 700.0  # the logarithm of the largest ratio that is shown
PARTS = {"head": ("_head_",), "network": ("_network_",), "test": ("_density_", "_residual_")}


def summarise_verified(values: np.ndarray, accepted: np.ndarray, statistic: Any) -> np.ndarray:
    """Compute a statistic [n] of each row's values [n, L] at the places where a draft was verified; NaN where none was.
    accepted: [n, L] 1, 0, or -1 where nothing was drafted."""
    rows = [row[drafted] for row, drafted in zip(values, accepted >= 0, strict=True)]
    return np.array([float(statistic(row)) if len(row) else np.nan for row in rows])


def compute_mean_ratio(log_ratio: np.ndarray, accepted: np.ndarray) -> float | None:
    """Compute the mean of p / q over all verified drafts of all images (CSpD, Table 6), from their logarithms [n, L];
    None if nothing was drafted. accepted: as in `summarise_verified`."""
    logs = log_ratio[accepted >= 0].astype(np.float64)
    return math.exp(min(log_mean(logs), LARGEST)) if len(logs) else None


def compute_place_shares(accepted: np.ndarray) -> np.ndarray:
    """Compute the share [L] of drafts accepted at each place of the order, from accepted [n, L] (1, 0, or -1 where
    nothing was drafted); NaN where none was."""
    drafted = accepted >= 0
    return np.where(drafted.any(0), (drafted & (accepted == 1)).sum(0) / np.maximum(drafted.sum(0), 1), np.nan)


def compute_cell_shares(accepted: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Compute the share [L] of drafts accepted at each position of the grid, from accepted [n, L] by place in the
    order; order [n, L] holds the position of every place."""
    on_grid = np.full(accepted.shape, -1, dtype=accepted.dtype)
    np.put_along_axis(on_grid, order, accepted, 1)
    return compute_place_shares(on_grid)


def rows(sample: Any) -> dict[str, np.ndarray]:
    """List for every image the drafts verified and accepted, the median log ratio and mean distance of its drafts, and
    its counts of steps, calls and seconds."""
    shard = sample.shard
    counts = ("steps", "tries", "gave_up", "depth", "target_head_rows")
    return {
        "drafted": (shard.accepted >= 0).sum(1),
        "accepted": (shard.accepted == 1).sum(1),
        "log_ratio": summarise_verified(shard.log_ratio, shard.accepted, np.median),
        "distance": summarise_verified(shard.distance, shard.accepted, np.mean),
        **{name: np.asarray(shard.columns[name], dtype=float) for name in counts},
        **sample.costs,
    }


def arrays(sample: Any) -> dict[str, np.ndarray]:
    accepted = sample.shard.accepted
    return {"by_place": compute_place_shares(accepted), "by_cell": compute_cell_shares(accepted, sample.shard.order)}


def measure(sample: Any) -> dict[str, Any]:
    """Compute means of the columns of `rows` over images, the share of drafts accepted, and the shares of time; None
    where nothing was drafted or counted."""
    columns = sample.rows
    shard = sample.shard
    drafted = int(columns["drafted"].sum())
    counts = ("tries", "gave_up", "target_conditions", "draft_conditions")
    return {
        **means(**{name: columns[name] for name in ("distance", "steps", "depth", "target_head_rows")}),
        **{name: float(np.mean(columns[name])) if name in columns else None for name in counts},
        "drafted": drafted,
        "accepted_drafts": int(shard.accepted_drafts.sum()) if (shard.accepted_drafts >= 0).all() else None,
        "acceptance": float(columns["accepted"].sum() / drafted) if drafted else None,
        "two_paths_ratio": compute_mean_ratio(shard.log_ratio, shard.accepted),
        **break_down_time(sample),
    }


def break_down_time(sample: Any) -> dict[str, Any]:
    """Compute seconds an image, the head's share of the time in networks (head and network), and the share of the whole
    that the test of drafts took; None for a share of nothing."""
    times = {name: float(np.mean(spent)) for name, spent in sample.costs.items() if name.endswith("_seconds")}
    head, network, test = (
        sum(spent for name, spent in times.items() if any(mark in name for mark in marks)) for marks in PARTS.values()
    )
    target = [times[name] for name in ("target_network_seconds", "target_head_seconds") if name in times]
    seconds = float((sample.shard.seconds / sample.shard.batch).mean())
    return {
        "seconds": seconds,
        **{name: times.get(name) for name in ("target_network_seconds", "target_head_seconds")},
        "target_seconds": sum(target) if target else None,
        "resampling_seconds": sum(spent for name, spent in times.items() if "_residual_" in name),
        "head_share": head / (head + network) if head + network else None,
        "test_seconds": test,
        "test_share": test / seconds if (sample.shard.accepted >= 0).any() else None,
    }
