"""The pictures that quality metrics compare with, and what a network sees in them: fresh renderings, or a folder of
the user's."""

import argparse
import importlib
from pathlib import Path

import numpy as np
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays

Image.MAX_IMAGE_PIXELS = 64_000_000  # a larger picture is an error, not a warning


def folder(path: Path, count: int) -> np.ndarray:
    """The first `count` PNG pictures of a folder by name; all must be of one size."""
    files = sorted(path.glob("*.png"))[:count]
    if len(files) < count:
        raise ParityError(
            f"reference_folder = {str(path)!r}: holds {len(files)} PNG files;"
            f" allowed: at least reference_images = {count}"
        )
    pictures = [np.asarray(Image.open(f, formats=["PNG"]).convert("RGB")) for f in files]
    sizes = {p.shape for p in pictures}
    if len(sizes) > 1:
        raise ParityError(f"reference_folder = {str(path)!r}: pictures of {len(sizes)} sizes; allowed: one size")
    return np.stack(pictures)


def run(a: argparse.Namespace) -> None:
    kind, manifest = importlib.import_module(f"parity.metrics.samples.{a.kind}"), read_json(a.checkpoint)
    pixels = folder(Path(a.folder), a.count) if a.folder else kind.drawn(a.prompts, a.count, manifest)
    write_arrays(a.out, pixels=pixels, **kind.looked_at(pixels, manifest, a.device))
