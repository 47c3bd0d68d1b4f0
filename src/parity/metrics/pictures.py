"""Pictures that quality is compared with, from a folder or an .npz, and what networks see in them.

Embedded models are compared with fresh renderings, or a folder of the user's; published models with a folder or an .npz
of the user's, as the declared networks see it. Without one there is no FID, and the file says so.
"""

import argparse
import importlib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays
from parity.metrics import judges

Image.MAX_IMAGE_PIXELS = 64_000_000  # a larger picture is an error
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"]
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
UNREADABLE = (
    ValueError, KeyError, TypeError, OSError, EOFError, SyntaxError, MemoryError, zipfile.BadZipFile,
    Image.DecompressionBombError,
)  # fmt: skip
ALLOWED = "a folder of pictures, or an .npz with arr_0 uint8 [n, H, W, 3], or mu [d] and sigma [d, d]"


@contextmanager
def one_line(file: Path) -> Iterator[None]:
    """ParityError that names the file, for whatever reading it raises."""
    try:
        yield
    except UNREADABLE as error:
        problem = " ".join(str(error).split())[:160]
        raise ParityError(f"reference = {str(file)!r}: cannot be read ({problem}); allowed: {ALLOWED}") from None


def open_picture(file: Path) -> np.ndarray:
    """uint8 [H, W, 3]."""
    with one_line(file), Image.open(file, formats=FORMATS) as picture:
        return np.asarray(picture.convert("RGB"))


def statistics(file: Path) -> dict[str, np.ndarray]:
    """mu [d] and sigma [d, d] of an .npz that holds them, {} of one that does not."""
    with one_line(file), np.load(file, allow_pickle=False) as held:
        if not {"mu", "sigma"} <= set(held.files):
            return {}
        mu, sigma = (held[name].astype(np.float64) for name in ("mu", "sigma"))
        if sigma.shape != 2 * mu.shape or mu.ndim != 1 or not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
            raise ValueError(f"mu {mu.shape}, sigma {sigma.shape}, or a number that is not finite")
        return {"mu": mu, "sigma": sigma}


def archived(file: Path, count: int) -> tuple[int, Iterator[np.ndarray]]:
    """The same as `pictures`, of an .npz: they are in arr_0, uint8 [n, H, W, 3], and read one after the other."""
    with one_line(file):
        archive = zipfile.ZipFile(file)
        if "arr_0.npy" not in archive.namelist():
            return 0, iter(())
        stream = archive.open("arr_0.npy")
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or shape[0] < max(1, count) or min(shape) < 1:
            raise ValueError(f"arr_0 is {dtype} {shape}; pictures asked for: {count or 'all'}")

    def each() -> Iterator[np.ndarray]:
        with archive, stream:
            for _ in range(count or shape[0]):
                with one_line(file):
                    picture = np.frombuffer(stream.read(int(np.prod(shape[1:]))), dtype=np.uint8).reshape(shape[1:])
                yield picture

    return count or shape[0], each()


def pictures(path: Path, count: int = 0) -> tuple[int, Iterable[np.ndarray]]:
    """How many pictures a folder (by name) or an .npz holds, at most `count` unless that is 0, and the pictures uint8
    [H, W, 3]. ParityError for fewer than `count`."""
    if not path.is_dir():
        return archived(path, count)
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    if len(files) < max(1, count):
        problem = f"holds {len(files)} pictures; allowed: at least {max(1, count)}"
        raise ParityError(f"reference = {str(path)!r}: {problem}")
    files = files[: count or None]
    return len(files), map(open_picture, files)


def draw(a: argparse.Namespace) -> None:
    """Writes the pictures that an embedded model is compared with, and what its own network sees in them."""
    kind, manifest = importlib.import_module(f"parity.metrics.samples.{a.kind}"), read_json(a.checkpoint)
    if a.folder:
        drawn = list(pictures(Path(a.folder), a.count)[1])
        if len(sizes := {picture.shape for picture in drawn}) > 1:
            raise ParityError(f"reference = {a.folder!r}: pictures of {len(sizes)} sizes; allowed: one size")
        pixels = np.stack(drawn)
    else:
        pixels = kind.draw(a.prompts, a.count, manifest)
    write_arrays(a.out, pixels=pixels, **kind.outputs_of(pixels, manifest, a.device))


def compared(
    path: Path | None, networks: dict[str, Any], protocol: str, count: int = 0, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Columns of the pictures as networks see them (`metrics.judges`), `mu` and `sigma` of a file that has them, and
    `why` there is less; the first `count` pictures, or all."""
    if path is None:
        return {"why": np.array("reference")}
    columns: dict[str, np.ndarray] = {} if path.is_dir() else statistics(path)
    number, _ = pictures(path, count)
    without_captions = {name: network for name, network in networks.items() if name not in judges.OF_CAPTIONS}
    if number and without_captions:
        columns |= judges.measure_pictures(lambda: pictures(path, count)[1], None, without_captions, protocol, device)
    return columns | {"why": np.array(path.name if number else f"{path.name} holds statistics alone")}


def look(a: argparse.Namespace) -> None:
    """Writes what the declared networks see in the pictures that published models are compared with."""
    path = Path(a.reference) if a.reference else None
    write_arrays(a.out, **compared(path, judges.declared(a.networks), a.protocol, a.count, a.device))
