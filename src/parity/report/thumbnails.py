"""Pictures as data URIs, and which of them a reader should look at first."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Column:
    """One cell's pictures of the grid's prompts."""

    label: str
    pixels: np.ndarray  # uint8 [n, H, W, 3]
    cosine: np.ndarray  # [n] CLIP cosine with the caption
    baseline: bool = False  # plain sampling: the first one of a model is what differences are taken from
    model: str = ""
    method: str = ""


def encoded(picture: Image.Image, quality: int) -> str:
    stream = io.BytesIO()
    picture.save(stream, format="WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()


def thumbnail(pixels: np.ndarray, side: int = 256) -> str:
    """uint8 [H, W, 3] as a data URI of at most `side` pixels, compressed: the exact picture is in its cell's folder."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return encoded(picture, 88)


class Sheets(NamedTuple):
    uris: list[str]
    of: list[int]  # the sheet of each column: columns of the same pictures share one
    side: int  # of a picture, pixels


def sheets(columns: Sequence[np.ndarray], across: int, room: int) -> tuple[Sheets, int]:
    """Pictures [n, H, W, 3] of each column on a sheet, `across` in a row, of at most 96 pixels each; of the first
    prompts, as many as take `room` bytes in all. Returns the sheets and how many prompts are on them."""
    drawn: dict[bytes, int] = {}
    of = [drawn.setdefault(pixels.tobytes(), len(drawn)) for pixels in columns]
    distinct = [columns[of.index(k)] for k in range(len(drawn))]
    shown, side = len(columns[0]), min(96, max(columns[0].shape[1:3]))
    while True:
        uris = [sheet(pixels[:shown], across, side) for pixels in distinct]
        if (size := sum(map(len, uris))) <= room or shown <= across:
            return Sheets(uris, of, side), shown
        shown = max(across, min(shown - across, int(shown * room / size)) // across * across)


def sheet(pixels: np.ndarray, across: int, side: int) -> str:
    whole = Image.new("RGB", (across * side, -(-len(pixels) // across) * side))
    for i, one in enumerate(pixels):
        picture = Image.fromarray(one)
        if picture.size != (side, side):
            picture = picture.resize((side, side), Image.Resampling.LANCZOS)
        whole.paste(picture, (i % across * side, i // across * side))
    return encoded(whole, 80)


def worst_first(columns: list[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Order of the prompts and, in that order, their worst differences: the least of (a decoder's cosine - its model's
    first baseline's).

    Without a decoder, the other columns stand for one.
    """
    base = {c.model: c for c in reversed(columns)} | {c.model: c for c in reversed(columns) if c.baseline}
    others = [c for c in columns if not c.baseline] or [c for c in columns if c is not base[c.model]] or columns
    worst = np.fmin.reduce([c.cosine - base[c.model].cosine for c in others], 0)  # of those that have a cosine
    order = np.argsort(worst, kind="stable")
    return order, worst[order]
