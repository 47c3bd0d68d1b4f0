"""What pictures of published models are compared with: a folder or an .npz of the user's, as the declared networks see
it. Without one there is no FID, and the file says so."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.files import write_arrays
from parity.metrics import judge_features
from parity.metrics.pictures import pictures, statistics

WHAT = "reference"


def compared(
    path: Path | None, networks: dict[str, Any], protocol: str, count: int = 0, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Columns of the pictures as networks see them (`metrics.judge_features`), `mu` and `sigma` of a file that has
    them, and `why` there is less; the first `count` pictures, or all."""
    if path is None:
        return {"why": np.array(WHAT)}
    found: dict[str, np.ndarray] = {} if path.is_dir() else statistics(path, WHAT)
    number, _ = pictures(path, WHAT, count)
    looking = {name: said for name, said in networks.items() if name not in judge_features.OF_CAPTIONS}
    if number and looking:
        found |= judge_features.looked_at(lambda: pictures(path, WHAT, count)[1], None, looking, protocol, device)
    return found | {"why": np.array(f"{path.name} holds statistics alone" if not number else f"{path.name}")}


def run(a: argparse.Namespace) -> None:
    networks = judge_features.declared(a.networks)
    path = Path(a.reference) if a.reference else None
    write_arrays(a.out, **compared(path, networks, a.protocol, a.count, a.device))
