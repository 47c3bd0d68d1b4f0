"""What continuous tokens took and what became of the drafts: steps, evaluations, acceptance, tries of its residual
sampler."""

from typing import Any

import numpy as np

from parity.metrics.standard_errors import means

KINDS = ("continuous",)
MEASURES = {
    "acceptance": ("share of drafts accepted", "", "none"),
    "distance": ("distance of draft and target", "", "lower"),
    "steps": ("steps per image", "", "lower"),
    "target_conditions": ("target evaluations", "", "lower"),
    "draft_conditions": ("draft evaluations", "", "lower"),
    "tries": ("tries of the residual sampler", "", "lower"),
    "gave_up": ("times it gave up", "", "lower"),
}


def of_verified(values: np.ndarray, accepted: np.ndarray, statistic: Any) -> np.ndarray:
    """[n] a statistic of each row's values [n, L] at the places where a draft was verified; NaN where none was."""
    seen = accepted >= 0
    return np.array([float(statistic(v[s])) if s.any() else np.nan for v, s in zip(values, seen, strict=True)])


def by_place(accepted: np.ndarray) -> np.ndarray:
    """[L] share of drafts accepted at each place of the order, of accepted [n, L] (1, 0, or -1 where nothing was
    drafted); NaN where none was."""
    drafted = accepted >= 0
    return np.where(drafted.any(0), (drafted & (accepted == 1)).sum(0) / np.maximum(drafted.sum(0), 1), np.nan)


def by_cell(accepted: np.ndarray, order: np.ndarray) -> np.ndarray:
    """[L] the same at each position of the grid; order [n, L] holds the position of every place."""
    at = np.full(accepted.shape, -1, dtype=accepted.dtype)
    np.put_along_axis(at, order, accepted, 1)
    return by_place(at)


def rows(sample: Any) -> dict[str, np.ndarray]:
    shard = sample.shard
    return {
        "drafted": (shard.accepted >= 0).sum(1),
        "accepted": (shard.accepted == 1).sum(1),
        "log_ratio": of_verified(shard.log_ratio, shard.accepted, np.median),
        "distance": of_verified(shard.distance, shard.accepted, np.mean),
        **{name: np.asarray(getattr(shard, name), dtype=float) for name in ("steps", "tries", "gave_up")},
        **sample.costs,
    }


def arrays(sample: Any) -> dict[str, np.ndarray]:
    """Where drafts were accepted: by place in the order, and on the grid."""
    accepted = sample.shard.accepted
    return {"by_place": by_place(accepted), "by_cell": by_cell(accepted, sample.shard.order)}


def measure(sample: Any) -> dict[str, Any]:
    taken = sample.rows
    drafted = int(taken["drafted"].sum())
    accepted = sample.shard.accepted_drafts
    counts = ("tries", "gave_up", "target_conditions", "draft_conditions")
    return {
        **means(distance=taken["distance"], steps=taken["steps"]),
        **{name: float(np.mean(taken[name])) if name in taken else None for name in counts},
        "drafted": drafted,
        "accepted_drafts": int(accepted.sum()) if (accepted >= 0).all() else None,
        "acceptance": float(taken["accepted"].sum() / drafted) if drafted else None,
    }
