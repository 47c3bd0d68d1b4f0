"""Quality and likelihood against plain decoding, prompt by prompt. Reads features alone, so it starts without torch."""

import numpy as np
from parity_certify.result_rows import Row

from parity.equality.layers import CellFiles
from parity.equality.paired import fid_row, matched, mmd_row, scalar_rows

ROLES = ("control", "method", "again")
WHEN = "always"
READS = ("features", "baseline", "reference")
WRITES = ()
SETTINGS = ("seeds", "margin_clip", "margin_logp", "swaps")


def mean_logp(logp: np.ndarray) -> np.ndarray:
    """Of each image [n], from logp [n, L]: forced tokens (NaN) and those that the law excludes (-inf) left out."""
    return np.nanmean(np.where(np.isneginf(logp), np.nan, logp), 1)


def rows(cell: CellFiles) -> list[Row]:
    """Differences in log p and, where the model has a picture network, in CLIP-score, features and FID."""
    settings, mine, theirs = cell.settings, cell.features, cell.baseline.features
    ids = mine["ids"], theirs["ids"]
    place = {**cell.place, "seed": settings["seeds"][0]}
    logp = matched("log p", mean_logp(mine["logp"]), mean_logp(theirs["logp"]), *ids)
    result = scalar_rows(logp, margin=settings["margin_logp"], **place)
    if "cosine" in mine:
        cosine = matched("CLIP", mine["cosine"], theirs["cosine"], *ids)
        result += scalar_rows(cosine, margin=settings["margin_clip"], **place)
    if "features" in mine:
        of = "Inception features" if mine["features"].shape[1] == 2048 else "CLIP features"
        features, swaps = matched(of, mine["features"], theirs["features"], *ids), settings["swaps"]
        result.append(mmd_row(features, swaps=swaps, **place))
        if "features" in cell.reference:
            result.append(fid_row(cell.reference["features"], features, swaps=min(swaps, 199), **place))
    return result
