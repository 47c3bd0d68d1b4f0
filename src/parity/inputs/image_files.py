"""Images of the user's own, from a folder or an .npz, as 8-bit colours.

What an image file leaves open is refused by name: transparency over an unknown ground, CMYK, 32-bit numbers without a
range, several frames. The rules check references while they are parsed, so this imports no torch.
"""

import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from parity.base.digests import digest_contents
from parity.base.errors import ConfigError, ParityError
from parity.experiment import paths, weights
from parity.experiment.options import KINDS
from parity.experiment.schema import Config

Image.MAX_IMAGE_PIXELS = 64_000_000  # Pillow refuses an image of more pixels
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"]
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
UNREADABLE = (
    ValueError, KeyError, TypeError, OSError, EOFError, SyntaxError, MemoryError, struct.error, zipfile.BadZipFile,
    Image.DecompressionBombError,
)  # fmt: skip
ALLOWED = "a folder of images, or an .npz with arr_0 uint8 [n, H, W, 3], or mu [d] and sigma [d, d]"
ONE_IMAGE = "one opaque image of gray or RGB, 8 or 16 bits"
GRAY_16 = {"I;16", "I;16B", "I;16L", "I;16N"}
EIGHT_BITS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"}  # these modes have at most 8 bits, or palettes
NAMES = {"I": "32-bit integers", "F": "floating-point numbers", "CMYK": "CMYK colours", "LAB": "Lab colours"}
FEATURES = 2048  # Inception has this many features
SHOWN = 5  # an error names this many of the images that cannot be used
FEWEST = 4  # a reference needs this many images, because precision and KID do


class ImageError(ParityError):
    """An image file that cannot be used: `problem` says why, the message also which file and what is allowed."""

    def __init__(self, file: Path, problem: str, allowed: str):
        super().__init__(f"reference = {str(file)!r}: {problem}; allowed: {allowed}")
        self.problem = problem


@contextmanager
def name_file(file: Path) -> Iterator[None]:
    """Make a context in which an error of reading is raised as a ParityError that names the file."""
    try:
        yield
    except ParityError:
        raise
    except UNREADABLE as error:
        problem = " ".join(str(error).split())[:160]
        raise ImageError(file, f"cannot be read ({problem})", ALLOWED) from None


def find_flaw(image: Image.Image) -> str:
    """Say why the colours of an opened image are uncertain (several frames, CMYK, ...); "" if they are not."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # an MPO is a photo, its first frame, followed by previews
        return f"{frames} frames"
    if image.mode in GRAY_16:
        tags = getattr(image, "tag_v2", {})  # in TIFF, tag 258 is the number of bits, 262 is 1 if 0 means black
        if (bits := tags.get(258, (16,))) != (16,):
            return f"{bits[0]}-bit gray"
        return "16-bit gray from white to black" if tags.get(262, 1) != 1 else ""
    if image.mode == "I" and image.format == "PPM":  # Pillow scales PPM's wide numbers to 16 bits
        return ""
    return "" if image.mode in EIGHT_BITS else NAMES.get(image.mode, f"{image.mode} colours")


def open_image(file: Path) -> np.ndarray:
    """Read an image as uint8 [H, W, 3], upright as EXIF says. Of 16 bits a channel the high byte is taken; colour
    profiles are not applied, as in published figures.

    Raises ParityError if the file holds no image, or one without certain colours.
    """
    with name_file(file), Image.open(file, formats=FORMATS) as image:
        problem = find_flaw(image)
        if not problem:
            upright = ImageOps.exif_transpose(image)
            deep = upright.mode in (*GRAY_16, "I")
            if upright.has_transparency_data:
                upright = upright.convert("RGBA")
                problem = "transparent pixels" if deep or np.asarray(upright)[..., 3].min() < 255 else ""
        if problem:
            raise ImageError(file, f"holds {problem}", ONE_IMAGE)
        if deep:
            return np.repeat((np.asarray(upright) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        return np.asarray(upright.convert("RGB"))


def open_images(files: Sequence[Path]) -> Iterator[np.ndarray]:
    """Read the images of a folder one after the other (`open_image`). At the first that cannot be used all later
    ones are read as well, and the ParityError names the first SHOWN of those with a flaw, and how many there are."""
    for i, file in enumerate(files):
        try:
            image = open_image(file)
        except ImageError as error:
            flaws = [f"{file.name} {error.problem}", *list_flaws(files[i + 1 :])]
            if len(flaws) == 1:
                raise
            more = f" and {len(flaws) - SHOWN:,} more" if len(flaws) > SHOWN else ""
            count = f"{len(flaws):,} of {len(files):,} images cannot be used"
            raise ParityError(f"{error}. {count}: {', '.join(flaws[:SHOWN])}{more}") from None
        yield image


def list_flaws(files: Iterable[Path]) -> Iterator[str]:
    """Yield name and problem of each image file that cannot be used."""
    for file in files:
        try:
            open_image(file)
        except ImageError as error:
            yield f"{file.name} {error.problem}"


class Header(NamedTuple):
    """The header of an array in an .npz."""

    shape: tuple[int, ...]
    by_columns: bool  # whether its numbers are in Fortran's order
    dtype: np.dtype


def read_header(stream: IO[bytes]) -> Header:
    """Read the header of a .npy array; the stream is then at its numbers. Raises ValueError unless its version is 1."""
    if (version := np.lib.format.read_magic(stream)) != (1, 0):
        raise ValueError(f"an array in version {version[0]} of numpy's format; allowed: 1")
    return Header(*np.lib.format.read_array_header_1_0(stream))


def read_headers(file: Path) -> dict[str, Header]:
    """Read the headers of "arr_0", "mu" and "sigma", by name, as far as an .npz has them, without their numbers."""
    headers = {}
    with name_file(file), zipfile.ZipFile(file) as archive:
        for name in {"arr_0", "mu", "sigma"} & {member.removesuffix(".npy") for member in archive.namelist()}:
            with archive.open(f"{name}.npy") as stream:
                headers[name] = read_header(stream)
    return headers


def check_images(header: Header, count: int) -> None:
    """Raise ValueError unless the header of arr_0 is of at least `count` images, uint8 [n, H, W, 3] in C order."""
    shape, by_columns, dtype = header
    if by_columns or dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or shape[0] < count or min(shape) < 1:
        order = " in Fortran's order" if by_columns else ""
        raise ValueError(f"arr_0 is {dtype} {shape}{order}; allowed: uint8 [n, H, W, 3], n at least {max(1, count)}")


def check_statistics(mu: tuple[int, ...], sigma: tuple[int, ...]) -> None:
    """Raise ValueError unless the shapes are [d] and [d, d], of a mean and a covariance."""
    if len(mu) != 1 or sigma != 2 * mu:
        raise ValueError(f"mu {mu}, sigma {sigma}")


def read_statistics(file: Path) -> dict[str, np.ndarray]:
    """Read mu [d], sigma [d, d], float64, from an .npz; {} if it lacks one. Raises ParityError for NaN or infinity."""
    with name_file(file), np.load(file, allow_pickle=False) as arrays:
        if not {"mu", "sigma"} <= set(arrays.files):
            return {}
        mu, sigma = (arrays[name].astype(np.float64) for name in ("mu", "sigma"))
        check_statistics(mu.shape, sigma.shape)
        if not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
            raise ValueError("mu or sigma has a number that is not finite")
        if np.abs(sigma - sigma.T).max() > 1e-6 * np.abs(sigma).max():
            raise ValueError("sigma is not symmetric, so it is no covariance")
        return {"mu": mu, "sigma": sigma}


def read_archive(file: Path, count: int) -> tuple[int, Iterator[np.ndarray]]:
    """Return how many images to read from arr_0 of an .npz (`count`, for 0 all; 0 without arr_0), and an iterator
    that reads them one after the other, uint8 [H, W, 3]. Raises ParityError for fewer than `count`."""
    with name_file(file):
        archive = zipfile.ZipFile(file)
        if "arr_0.npy" not in archive.namelist():
            return 0, iter(())
        stream = archive.open("arr_0.npy")
        header = read_header(stream)
        check_images(header, count)
    number = count or header.shape[0]
    size = header.shape[1:]

    def read_each() -> Iterator[np.ndarray]:
        """Yield the images one by one, and close the file after the last."""
        with archive, stream:
            for _ in range(number):
                with name_file(file):
                    image = np.frombuffer(stream.read(int(np.prod(size))), dtype=np.uint8).reshape(size)
                yield image

    return number, read_each()


def list_images(folder: Path) -> list[Path]:
    """List the image files of a folder, by their suffix, in order of name, without hidden ones, such as the ._a.png
    that a Mac adds to a.png, and without those in its subfolders."""
    named = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
    return sorted(file for file in named if file.is_file())


def digest_state(path: Path) -> str:
    """Digest names and contents of an .npz, or of each image of a folder: another digest means that the images to
    compare with are others, and their features are made anew; "" if there is no such file."""
    files = list_images(path) if path.is_dir() else [path] if path.is_file() else []
    return digest_contents(files) if files else ""


def read_images(path: Path, count: int = 0) -> tuple[int, Iterable[np.ndarray]]:
    """Return how many images there are to read in a folder (by name) or an .npz, and an iterable that reads each when
    it is asked for, uint8 [H, W, 3]: the first `count`, or all for 0. Raises ParityError for fewer than `count`."""
    if not path.is_dir():
        return read_archive(path, count)
    files = list_images(path)
    if len(files) < max(1, count):
        problem = f"holds {len(files)} images; allowed: at least {max(1, count)}"
        raise ParityError(f"reference = {str(path)!r}: {problem}")
    files = files[: count or None]
    return len(files), open_images(files)


def describe_left_out(config: Config) -> list[str]:
    """Say in a line for each `reference` that is a folder which of its files are left out, and why; [] for none."""
    lines = []
    for kind in ("discrete", "continuous"):
        section = getattr(config, KINDS[kind])
        if section is not None and section.reference and (folder := Path(section.reference)).is_dir():
            reasons: Counter[str] = Counter()
            for file in folder.iterdir():
                if not file.exists():
                    reasons["links to nothing"] += 1
                elif file.is_dir():
                    reasons["folders"] += 1
                elif file.name.startswith("."):
                    reasons["hidden files"] += 1
                elif file.suffix.lower() not in SUFFIXES:
                    reasons[f"files {file.suffix or 'without a suffix'}"] += 1
            models = weights.list_models(config, kind).values()
            _, count = paths.reference_images(config, kind, not any(map(paths.brings_network, models)))
            if count and (more := len(list_images(folder)) - count) > 0:
                reasons[f"images after the first {count:,}"] = more
            if reasons:
                left_out = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
                lines.append(f"{KINDS[kind]}.reference = {section.reference!r}: left out: {left_out}")
    return lines


def check_references(config: Config) -> None:
    """Raise ConfigError if the `reference` of `image` or `continuous` holds too few images or other things, as far as
    names, headers and the first image tell; the job that reads all of them checks each."""
    for kind in ("discrete", "continuous"):
        section = getattr(config, KINDS[kind])
        if section is None or not section.reference:
            continue
        models = weights.list_models(config, kind).values()
        if any(paths.brings_network(model) for model in models) and kind == "discrete":
            check_reference(f"{KINDS[kind]}.reference", Path(section.reference), section.reference_images, drawn=True)
        if not all(paths.brings_network(model) for model in models):
            path, count = paths.reference_images(config, kind, True)
            size = FEATURES if "inception" in config.networks.list_named() else 0
            check_reference(f"{KINDS[kind]}.reference", Path(path), count, drawn=False, size=size)


def check_reference(key: str, path: Path, count: int, drawn: bool, size: int = 0) -> None:
    """Raise ConfigError that begins with `key` unless a folder or an .npz holds enough images, `count` and FEWEST, or
    statistics.

    drawn  images themselves are needed, statistics do not do
    size   how many features the statistics must be of, 0 for any number
    """
    fewest = max(FEWEST, count)
    try:
        if path.is_dir():
            files = list_images(path)
            if len(files) < fewest:
                folders = " beside folders, which are not read" if any(p.is_dir() for p in path.iterdir()) else ""
                if links := sum(file.is_symlink() and not file.exists() for file in path.iterdir()):
                    folders += f" and {links:,} links to files that are not there (git annex get {path})"
                suffixes = ", ".join(sorted(SUFFIXES))
                raise ValueError(f"holds {len(files)} images{folders}; allowed: at least {fewest} ({suffixes})")
            next(open_images(files[: count or None]))
        else:
            headers = read_headers(path)
            if "arr_0" in headers:
                check_images(headers["arr_0"], fewest)
            if len({"mu", "sigma"} & set(headers)) == 1:
                raise ValueError("holds one of mu and sigma; allowed: both, or neither")
            if {"mu", "sigma"} <= set(headers):
                check_statistics(headers["mu"].shape, headers["sigma"].shape)
                if size and headers["mu"].shape != (size,):
                    raise ValueError(f"mu {headers['mu'].shape}; allowed: ({size},), of Inception's features")
            elif "arr_0" not in headers:
                raise ValueError(f"holds neither images nor statistics; allowed: {ALLOWED}")
            if drawn and "arr_0" not in headers:
                raise ValueError("holds statistics alone; allowed: images, for these models")
    except (OSError, ValueError) as error:
        label = f"{key} = {str(path)!r}: "
        problem = str(error)
        if problem.startswith("reference = "):  # the message already names an image of the folder
            label = key
            problem = problem.removeprefix("reference")
        raise ConfigError(f"{label}{problem}") from None
