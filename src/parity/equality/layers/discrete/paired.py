"""Quality and likelihood against plain decoding, prompt by prompt. Reads features alone, so it starts without torch."""

import numpy as np

from parity.equality.cell import CellFiles
from parity.equality.paired import fid_row, mmd_row, scalar_rows
from parity.equality.rows import Row

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
    x, y = (side["ids"].astype(str).tolist() for side in (mine, theirs))
    place = {**cell.place, "seed": settings["seeds"][0]}
    mean, baseline = (mean_logp(side["logp"]) for side in (mine, theirs))
    found = scalar_rows(mean, baseline, x, y, name="log p", margin=settings["margin_logp"], **place)
    if "features" in mine:
        a, b = mine["features"], theirs["features"]
        margin, swaps, real = settings["margin_clip"], settings["swaps"], cell.reference["features"]
        found += scalar_rows(mine["cosine"], theirs["cosine"], x, y, name="CLIP", margin=margin, **place)
        found.append(mmd_row(a, b, x, y, swaps=swaps, name="CLIP features", **place))
        found.append(fid_row(real, a, b, x, y, swaps=min(swaps, 199), **place))
    return found
