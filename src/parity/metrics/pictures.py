"""Pictures from outside: a folder of them, or an .npz of pictures or of their statistics. Read one after the other, and
never more than is declared beforehand."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from parity.base.errors import ParityError

PIXELS = 64_000_000  # a larger picture is an error
Image.MAX_IMAGE_PIXELS = PIXELS
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"]
ENDS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
WIDEST = 4096  # of features, in statistics


def files_of(folder: Path, what: str, count: int = 0) -> list[Path]:
    """The first `count` pictures of a folder by name (0: all of them); ParityError if it holds fewer."""
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDS and f.is_file())
    if len(files) < max(1, count):
        wanted = f"at least {count}" if count else "one or more"
        raise ParityError(f"{what} = {str(folder)!r}: holds {len(files)} pictures; allowed: {wanted}")
    return files[: count or None]


def opened(file: Path, what: str) -> np.ndarray:
    """uint8 [H, W, 3]; ParityError for a file that is no picture, or one that is too large."""
    try:
        with Image.open(file, formats=FORMATS) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        cause = " ".join(str(error).split())[:160]
        raise ParityError(f"{what}: {str(file)!r} is no picture that can be read: {cause}") from None


def header(archive: zipfile.ZipFile, member: str) -> tuple[Any, tuple[int, ...], np.dtype[Any]]:
    """An array of an .npz, open behind its header, with its shape and type."""
    stream = archive.open(f"{member}.npy")
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, fortran, dtype = read(stream)
    if fortran or dtype.kind not in "biuf" or min(shape, default=1) < 0:
        raise ValueError(f"{member} is not of numbers row by row, or of no size that there is")
    return stream, shape, dtype


def statistics(file: Path, what: str) -> dict[str, np.ndarray]:
    """mu [d] and sigma [d, d] of an .npz that holds them, {} of one that does not."""
    with whole(file, what) as archive:
        if not {"mu.npy", "sigma.npy"} <= set(archive.namelist()):
            return {}
        try:
            shapes = {name: header(archive, name)[1] for name in ("mu", "sigma")}
            (d,) = shapes["mu"]
            if d > WIDEST or shapes["sigma"] != (d, d):
                raise ValueError(f"mu {shapes['mu']} and sigma {shapes['sigma']}")
            with np.load(file, allow_pickle=False) as held:
                found = {name: held[name].astype(np.float64) for name in ("mu", "sigma")}
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            cause = " ".join(str(error).split())[:160]
            raise ParityError(
                f"{what} = {str(file)!r}: no statistics: {cause}; allowed: mu [d], sigma [d, d]"
            ) from None
    if not all(np.isfinite(value).all() for value in found.values()):
        raise ParityError(f"{what} = {str(file)!r}: mu or sigma is not finite")
    return found


def whole(file: Path, what: str) -> zipfile.ZipFile:
    try:
        if not file.is_file():
            raise OSError("no regular file")
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as error:
        raise ParityError(f"{what} = {str(file)!r}: cannot be read ({error}); allowed: a folder, or an .npz") from None


def held_pictures(file: Path, what: str, count: int = 0) -> tuple[int, Iterator[np.ndarray]]:
    """How many pictures an .npz has under arr_0 (uint8 [n, H, W, 3]), at most `count` unless that is 0, and the
    pictures; 0 and None if it has none."""
    archive = whole(file, what)
    if "arr_0.npy" not in archive.namelist():
        return 0, iter(())
    try:
        stream, shape, dtype = header(archive, "arr_0")
        if dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or shape[1] * shape[2] > PIXELS:
            raise ValueError(f"arr_0 is {dtype} {shape}")
        if shape[0] < max(1, count):
            raise ValueError(f"{shape[0]} pictures, and {count} are asked for")
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        cause = " ".join(str(error).split())[:160]
        raise ParityError(f"{what} = {str(file)!r}: {cause}; allowed: arr_0 uint8 [n, H, W, 3]") from None

    def each() -> Iterator[np.ndarray]:
        size = int(np.prod(shape[1:]))
        with archive, stream:
            for k in range(count or shape[0]):
                data = stream.read(size)
                if len(data) < size:
                    raise ParityError(f"{what} = {str(file)!r}: ends in picture {k} of {shape[0]}")
                yield np.frombuffer(data, dtype=np.uint8).reshape(shape[1:])

    return count or shape[0], each()


def pictures(path: Path, what: str, count: int = 0) -> tuple[int, Iterable[np.ndarray]]:
    """How many pictures a folder or an .npz holds, at most `count` unless that is 0, and the pictures uint8 [H, W,
    3]."""
    if not path.is_dir():
        return held_pictures(path, what, count)
    files = files_of(path, what, count)
    return len(files), (opened(file, what) for file in files)
