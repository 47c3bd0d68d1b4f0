"""The equality layer that compares a cell with plain sampling, prompt by prompt.

python -m parity.pair --cell .../sjd-0123abcd --baseline .../ar-0123abcd --reference features.npz --out rows.json

Reads features and log-probabilities alone, so it starts without torch.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import one_line
from parity.base.files import read_arrays, read_json, write_json
from parity.equality import paired
from parity.equality.rows import Row


def compare(a: argparse.Namespace) -> list[Row]:
    """Quality and likelihood differences from the baseline."""
    spec, mine, theirs = (
        read_json(a.cell / "spec.json"),
        read_arrays(a.cell / "features.npz"),
        read_arrays(a.baseline / "features.npz"),
    )
    place: dict[str, Any] = {"model": spec["model"], "method": spec["method"], "key": a.cell.name.rsplit("-", 1)[1]}
    x, y, seed = mine["ids"].astype(str).tolist(), theirs["ids"].astype(str).tolist(), a.seeds[0]
    logp, baseline = (
        np.nanmean(np.where(np.isneginf(side["logp"]), np.nan, side["logp"]), 1) for side in (mine, theirs)
    )
    found = paired.scalar_rows(logp, baseline, x, y, name="log p", margin=a.margin_logp, seed=seed, **place)
    if "features" in mine:
        found += paired.scalar_rows(
            mine["cosine"], theirs["cosine"], x, y, name="CLIP", margin=a.margin_clip, seed=seed, **place
        )
        found.append(
            paired.mmd_row(
                mine["features"], theirs["features"], x, y, seed=seed, swaps=a.swaps, name="CLIP features", **place
            )
        )
        real = read_arrays(a.reference)["features"]
        found.append(
            paired.fid_row(
                real, mine["features"], theirs["features"], x, y, seed=seed, swaps=min(a.swaps, 199), **place
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--baseline", type=Path, required=True, help="the folder of the plain-sampling cell")
    parser.add_argument("--reference", type=Path, required=True, help="features of the reference pictures")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--margin-clip", type=float, default=0.02)
    parser.add_argument("--margin-logp", type=float, default=0.05)
    parser.add_argument("--swaps", type=int, default=499)
    a = parser.parse_args()
    write_json(a.out, {"rows": compare(a)})


if __name__ == "__main__":
    one_line(main)
