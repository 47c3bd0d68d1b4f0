"""The pictures that embedded models are compared with, and what their own network sees in them: fresh renderings, or a
folder of the user's. For published models see `metrics.reference_features`."""

import argparse
import importlib
from pathlib import Path

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays
from parity.metrics.pictures import pictures


def folder(path: Path, count: int) -> np.ndarray:
    """The first `count` pictures of a folder by name; all must be of one size."""
    found = list(pictures(path, "reference", count)[1])
    sizes = {p.shape for p in found}
    if len(sizes) > 1:
        raise ParityError(f"reference = {str(path)!r}: pictures of {len(sizes)} sizes; allowed: one size")
    return np.stack(found)


def run(a: argparse.Namespace) -> None:
    kind, manifest = importlib.import_module(f"parity.metrics.samples.{a.kind}"), read_json(a.checkpoint)
    pixels = folder(Path(a.folder), a.count) if a.folder else kind.drawn(a.prompts, a.count, manifest)
    write_arrays(a.out, pixels=pixels, **kind.looked_at(pixels, manifest, a.device))
