"""The pictures that embedded models are compared with, and what their own network sees in them: fresh renderings, or a
folder of the user's.

Pictures of published models are compared with a folder or an .npz of the user's, as the declared networks see it.
Without one there is no FID, and the file says so.
"""

import argparse
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays
from parity.metrics import judges
from parity.metrics.pictures import pictures, statistics


def folder(path: Path, count: int) -> np.ndarray:
    """The first `count` pictures of a folder by name; all must be of one size."""
    found = list(pictures(path, "reference", count)[1])
    sizes = {p.shape for p in found}
    if len(sizes) > 1:
        raise ParityError(f"reference = {str(path)!r}: pictures of {len(sizes)} sizes; allowed: one size")
    return np.stack(found)


def draw(a: argparse.Namespace) -> None:
    kind, manifest = importlib.import_module(f"parity.metrics.samples.{a.kind}"), read_json(a.checkpoint)
    pixels = folder(Path(a.folder), a.count) if a.folder else kind.drawn(a.prompts, a.count, manifest)
    write_arrays(a.out, pixels=pixels, **kind.looked_at(pixels, manifest, a.device))


def compared(
    path: Path | None, networks: dict[str, Any], protocol: str, count: int = 0, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Columns of the pictures as networks see them (`metrics.judges`), `mu` and `sigma` of a file that has
    them, and `why` there is less; the first `count` pictures, or all."""
    if path is None:
        return {"why": np.array("reference")}
    columns: dict[str, np.ndarray] = {} if path.is_dir() else statistics(path, "reference")
    number, _ = pictures(path, "reference", count)
    looking = {name: network for name, network in networks.items() if name not in judges.OF_CAPTIONS}
    if number and looking:
        columns |= judges.looked_at(lambda: pictures(path, "reference", count)[1], None, looking, protocol, device)
    return columns | {"why": np.array(f"{path.name} holds statistics alone" if not number else f"{path.name}")}


def look(a: argparse.Namespace) -> None:
    networks = judges.declared(a.networks)
    path = Path(a.reference) if a.reference else None
    write_arrays(a.out, **compared(path, networks, a.protocol, a.count, a.device))
