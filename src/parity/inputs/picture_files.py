"""Pictures of the user's own, from a folder or an .npz, as 8-bit colours.

What a picture file leaves open is refused by name: transparency over an unknown ground, CMYK, 32-bit numbers without a
range, several frames. The rules check references while they are parsed, so this imports no torch.
"""

import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from parity.base.errors import ConfigError, ParityError
from parity.experiment import paths, weights
from parity.experiment.options import KINDS
from parity.experiment.schema import Config

Image.MAX_IMAGE_PIXELS = 64_000_000  # a larger picture is an error
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"]
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
UNREADABLE = (
    ValueError, KeyError, TypeError, OSError, EOFError, SyntaxError, MemoryError, struct.error, zipfile.BadZipFile,
    Image.DecompressionBombError,
)  # fmt: skip
ALLOWED = "a folder of pictures, or an .npz with arr_0 uint8 [n, H, W, 3], or mu [d] and sigma [d, d]"
ONE_PICTURE = "one opaque picture of gray or RGB, 8 or 16 bits"
GRAY_16 = {"I;16", "I;16B", "I;16L", "I;16N"}
EIGHT_BITS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"}  # of a channel, or a palette of such
NAMES = {"I": "32-bit integers", "F": "floating-point numbers", "CMYK": "CMYK colours", "LAB": "Lab colours"}
FEATURES = 2048  # of Inception
FEWEST = 4  # pictures of a reference; precision and KID need as many


@contextmanager
def name_file(file: Path) -> Iterator[None]:
    """Turn errors of reading into a ParityError that names the file."""
    try:
        yield
    except ParityError:
        raise
    except UNREADABLE as error:
        problem = " ".join(str(error).split())[:160]
        raise ParityError(f"reference = {str(file)!r}: cannot be read ({problem}); allowed: {ALLOWED}") from None


def find_flaw(picture: Image.Image) -> str:
    """Find the reason why an opened picture has no certain colours, "" if it has."""
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # of a photo with previews behind it, the first is the photo
        return f"{frames} frames"
    if picture.mode in GRAY_16:
        tags = getattr(picture, "tag_v2", {})  # of TIFF: bits, and whether 0 is black
        if (bits := tags.get(258, (16,))) != (16,):
            return f"{bits[0]}-bit gray"
        return "16-bit gray from white to black" if tags.get(262, 1) != 1 else ""
    if picture.mode == "I" and picture.format == "PPM":  # 16 bits, whatever its largest value
        return ""
    return "" if picture.mode in EIGHT_BITS else NAMES.get(picture.mode, f"{picture.mode} colours")


def open_picture(file: Path) -> np.ndarray:
    """Read a picture as uint8 [H, W, 3], upright as EXIF says. Of 16 bits a channel the high byte is taken; colour
    profiles are not applied, as in published figures.

    Raises ParityError if the file holds no picture, or one without certain colours.
    """
    with name_file(file), Image.open(file, formats=FORMATS) as picture:
        problem = find_flaw(picture)
        if not problem:
            upright = ImageOps.exif_transpose(picture)
            deep = upright.mode in (*GRAY_16, "I")
            if upright.has_transparency_data:
                upright = upright.convert("RGBA")
                problem = "transparent pixels" if deep or np.asarray(upright)[..., 3].min() < 255 else ""
        if problem:
            raise ParityError(f"reference = {str(file)!r}: holds {problem}; allowed: {ONE_PICTURE}")
        if deep:
            return np.repeat((np.asarray(upright) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        return np.asarray(upright.convert("RGB"))


class Header(NamedTuple):
    """What an .npz says of one of its arrays."""

    shape: tuple[int, ...]
    by_columns: bool  # in Fortran's order
    dtype: np.dtype


def read_header(stream: IO[bytes]) -> Header:
    """Read the header of an array; the stream is then at its first number."""
    if (version := np.lib.format.read_magic(stream)) != (1, 0):
        raise ValueError(f"an array in version {version[0]} of numpy's format; allowed: 1")
    return Header(*np.lib.format.read_array_header_1_0(stream))


def read_headers(file: Path) -> dict[str, Header]:
    """Read the headers of the arrays in an .npz that are used, by name, without their numbers."""
    headers = {}
    with name_file(file), zipfile.ZipFile(file) as archive:
        for name in {"arr_0", "mu", "sigma"} & {member.removesuffix(".npy") for member in archive.namelist()}:
            with archive.open(f"{name}.npy") as stream:
                headers[name] = read_header(stream)
    return headers


def check_pictures(header: Header, count: int) -> None:
    """Raise ValueError unless arr_0 holds at least `count` pictures."""
    shape, by_columns, dtype = header
    if by_columns or dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or shape[0] < count or min(shape) < 1:
        order = " in Fortran's order" if by_columns else ""
        raise ValueError(f"arr_0 is {dtype} {shape}{order}; allowed: uint8 [n, H, W, 3], n at least {max(1, count)}")


def check_statistics(mu: tuple[int, ...], sigma: tuple[int, ...]) -> None:
    """Raise ValueError unless these are the shapes of a mean and a covariance."""
    if len(mu) != 1 or sigma != 2 * mu:
        raise ValueError(f"mu {mu}, sigma {sigma}")


def read_statistics(file: Path) -> dict[str, np.ndarray]:
    """Read mu [d] and sigma [d, d] from an .npz; {} if it does not hold them."""
    with name_file(file), np.load(file, allow_pickle=False) as arrays:
        if not {"mu", "sigma"} <= set(arrays.files):
            return {}
        mu, sigma = (arrays[name].astype(np.float64) for name in ("mu", "sigma"))
        check_statistics(mu.shape, sigma.shape)
        if not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
            raise ValueError("mu or sigma has a number that is not finite")
        return {"mu": mu, "sigma": sigma}


def read_archive(file: Path, count: int) -> tuple[int, Iterator[np.ndarray]]:
    """Count and read the pictures of an .npz, like `read_pictures`: they are in arr_0, uint8 [n, H, W, 3], and read one
    after the other."""
    with name_file(file):
        archive = zipfile.ZipFile(file)
        if "arr_0.npy" not in archive.namelist():
            return 0, iter(())
        stream = archive.open("arr_0.npy")
        header = read_header(stream)
        check_pictures(header, count)
    number = count or header.shape[0]
    size = header.shape[1:]

    def read_each() -> Iterator[np.ndarray]:
        with archive, stream:
            for _ in range(number):
                with name_file(file):
                    picture = np.frombuffer(stream.read(int(np.prod(size))), dtype=np.uint8).reshape(size)
                yield picture

    return number, read_each()


def list_pictures(folder: Path) -> list[Path]:
    """List the pictures of a folder by name, without its folders'."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def read_pictures(path: Path, count: int = 0) -> tuple[int, Iterable[np.ndarray]]:
    """Count and read the pictures, uint8 [H, W, 3], of a folder (by name) or an .npz, at most `count` unless that is 0.
    Raises ParityError for fewer than `count`."""
    if not path.is_dir():
        return read_archive(path, count)
    files = list_pictures(path)
    if len(files) < max(1, count):
        problem = f"holds {len(files)} pictures; allowed: at least {max(1, count)}"
        raise ParityError(f"reference = {str(path)!r}: {problem}")
    files = files[: count or None]
    return len(files), map(open_picture, files)


def check_references(config: Config) -> None:
    """Raise ConfigError for a reference that holds too few pictures or other things, as far as names, headers and the
    first picture tell; the job that reads them all checks each."""
    for kind in ("discrete", "continuous"):
        section = getattr(config, KINDS[kind])
        if section is None or not section.reference:
            continue
        models = weights.list_models(config, kind).values()
        if any(paths.brings_network(model) for model in models) and kind == "discrete":
            check_reference(f"{KINDS[kind]}.reference", Path(section.reference), section.reference_images, drawn=True)
        if not all(paths.brings_network(model) for model in models):
            path, count = paths.reference_pictures(config, kind, True)
            size = FEATURES if "inception" in config.networks.list_named() else 0
            check_reference(f"{KINDS[kind]}.reference", Path(path), count, drawn=False, size=size)


def check_reference(key: str, path: Path, count: int, drawn: bool, size: int = 0) -> None:
    """Raise ConfigError unless a folder or an .npz holds `count` pictures, or FEWEST.

    drawn  pictures themselves are needed, statistics do not do
    size   features that statistics are of, 0 for any
    """
    fewest = max(FEWEST, count)
    try:
        if path.is_dir():
            files = list_pictures(path)
            if len(files) < fewest:
                folders = " beside folders, which are not read" if any(p.is_dir() for p in path.iterdir()) else ""
                suffixes = ", ".join(sorted(SUFFIXES))
                raise ValueError(f"holds {len(files)} pictures{folders}; allowed: at least {fewest} ({suffixes})")
            open_picture(files[0])
        else:
            headers = read_headers(path)
            if "arr_0" in headers:
                check_pictures(headers["arr_0"], fewest)
            if {"mu", "sigma"} <= set(headers):
                check_statistics(headers["mu"].shape, headers["sigma"].shape)
                if size and headers["mu"].shape != (size,):
                    raise ValueError(f"mu {headers['mu'].shape}; allowed: ({size},), of Inception's features")
            elif "arr_0" not in headers:
                raise ValueError(f"holds neither pictures nor statistics; allowed: {ALLOWED}")
            if drawn and "arr_0" not in headers:
                raise ValueError("holds statistics alone; allowed: pictures, for these models")
    except (OSError, ValueError) as error:
        label = f"{key} = {str(path)!r}: "
        problem = str(error)
        if problem.startswith("reference = "):  # of a picture in it
            label = key
            problem = problem.removeprefix("reference")
        raise ConfigError(f"{label}{problem}") from None
