"""Images that quality is compared with, from a folder or an .npz, and what networks see in them.

Embedded models are compared with fresh renderings, or a folder of the user's; published models with a folder or an .npz
of the user's, as the declared networks see it. Without one there is no FID, and the file says so."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.digests import read_manifest
from parity.base.errors import ParityError
from parity.base.files import write_arrays
from parity.inputs.image_files import read_images, read_statistics
from parity.metrics import judges
from parity.metrics.protocols import recipe


def write_reference(a: argparse.Namespace) -> None:
    """Write to `--out` pixels uint8 [n, H, W, 3] that an embedded model is compared with, and what its network sees in
    them: images of `--folder`, or else drawn for the prompts. Raises ParityError for images of several sizes."""
    kind = importlib.import_module(f"parity.metrics.samples.{a.kind}")
    manifest = read_manifest(a.checkpoint)
    if a.folder:
        drawn = list(read_images(Path(a.folder), a.count)[1])
        if len(sizes := {image.shape for image in drawn}) > 1:
            raise ParityError(f"reference = {a.folder!r}: images of {len(sizes)} sizes; allowed: one size")
        pixels = np.stack(drawn)
    else:
        pixels = kind.draw(a.prompts, a.count, manifest)
    write_arrays(a.out, pixels=pixels, **kind.outputs_of(pixels, manifest, a.device))


def measure_reference(
    path: Path | None, networks: dict[str, Any], protocol: str, count: int = 0, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Measure what networks see in the first `count` images (0: all) of a folder or .npz, as columns of
    `metrics.judges`; with `mu` and `sigma` of a file that has them, and in `why` the file's name or what is missing.

    A file with images, too, is one of ADM, whose mu and sigma are of images as TensorFlow resizes them: a protocol that
    resizes in another way reads the images alone, and a line says so.
    """
    if path is None:
        return {"why": np.array("reference")}
    columns: dict[str, np.ndarray] = {} if path.is_dir() else read_statistics(path)
    number, _ = read_images(path, count)
    if columns and number and recipe(protocol)["resize"] != "tensorflow":
        columns = {}
        print(
            f"reference = {str(path)!r}: mu and sigma are of images as TensorFlow resizes them; protocol {protocol} is "
            "measured on the images",
            file=sys.stderr,
        )
    without_captions = {name: network for name, network in networks.items() if name not in judges.OF_CAPTIONS}
    if number and without_captions:
        columns |= judges.measure_images(lambda: read_images(path, count)[1], None, without_captions, protocol, device)
    return columns | {"why": np.array(path.name if number else f"{path.name} holds statistics alone")}


def write_reference_features(a: argparse.Namespace) -> None:
    """Write what the declared networks see in `--reference`, the images that published models are compared with."""
    path = Path(a.reference) if a.reference else None
    write_arrays(a.out, **measure_reference(path, judges.read_manifests(a.networks), a.protocol, a.count, a.device))
