"""All figures of one cell, from arrays: reading and writing files is the caller's."""

import math
from typing import Any

import numpy as np

from parity.base.files import Shard
from parity.metrics.clip import clip_score
from parity.metrics.fid import Reference, fid_and_error
from parity.metrics.kid import kid_and_error
from parity.metrics.likelihood import likelihood
from parity.metrics.manifold import precision_recall, precision_recall_errors
from parity.metrics.speed import speed
from parity.metrics.spread import prompt_groups


def quality(
    features: np.ndarray,
    cosine: np.ndarray,
    ids: np.ndarray,
    reference_features: np.ndarray,
    reference: Reference,
    seed: int = 0,
) -> dict[str, float]:
    """FID, KID, precision, recall and CLIP-score of features [n, d] and cosine [n], with standard errors."""
    groups = prompt_groups(ids)
    found: dict[str, float] = {}
    found["fid"], found["fid_se"] = fid_and_error(features, reference, groups, seed=seed)
    found["kid"], found["kid_se"] = kid_and_error(features, reference_features, seed=seed)
    found["precision"], found["recall"] = precision_recall(features, reference_features)
    found["precision_se"], found["recall_se"] = precision_recall_errors(features, reference_features, groups, seed=seed)
    found["reference_n"] = len(reference_features)
    return found | clip_score(cosine, groups)


def cell_metrics(
    shard: Shard,
    features: dict[str, np.ndarray] | None,
    reference_features: np.ndarray | None,
    reference: Reference | None,
    logp: np.ndarray | None,
    seed: int = 0,
) -> dict[str, Any]:
    """A row of figures under flat names, each with `<name>_se`, or `<name>_low` and `<name>_high`; None where one batch shows no spread.

    features   of `features.cell_features`, its ids those of the shard in the same order; None leaves the quality figures out
    reference  `fid.reference_half(reference_features)`, computed once for all cells
    logp       [n, L] of `likelihood.token_log_probabilities`; None leaves the likelihood out. Its NaN columns are the forced ones.
    """
    if logp is not None and logp.shape != shard.tokens.shape:
        raise ValueError(f"logp: {logp.shape}; allowed: {shard.tokens.shape}, as the tokens")
    forced = None if logp is None else np.isnan(logp).all(0)
    found: dict[str, Any] = {"n": len(shard.ids), **speed(shard, forced)}
    if features is not None and reference_features is not None and reference is not None:
        if not np.array_equal(features["ids"].astype(str), shard.ids.astype(str)):
            raise ValueError("features: their ids are not the shard's, in its order")
        found |= quality(features["features"], features["cosine"], shard.ids, reference_features, reference, seed)
    if logp is not None:
        found |= likelihood(logp, prompt_groups(shard.ids))
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in found.items()}
