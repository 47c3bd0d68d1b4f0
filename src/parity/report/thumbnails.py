"""Pictures as data URIs, and which of them a reader should look at first."""

import base64
import io
from dataclasses import dataclass

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


def thumbnail(pixels: np.ndarray, side: int = 256) -> str:
    """uint8 [H, W, 3] as a data URI of at most `side` pixels: PNG for small pictures, where it is exact, else JPEG."""
    picture = Image.fromarray(pixels)
    small = max(picture.size) <= 96
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, format="PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": 88}))
    return f"data:image/{'png' if small else 'jpeg'};base64," + base64.b64encode(stream.getvalue()).decode()


def worst_first(columns: list[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Order of the prompts and, in that order, their worst differences: the least of (a decoder's cosine - its model's
    first baseline's).

    Without a decoder, the other columns stand for one.
    """
    base = {c.model: c for c in reversed(columns)} | {c.model: c for c in reversed(columns) if c.baseline}
    others = [c for c in columns if not c.baseline] or [c for c in columns if c is not base[c.model]] or columns
    worst = np.min([c.cosine - base[c.model].cosine for c in others], 0)
    order = np.argsort(worst, kind="stable")
    return order, worst[order]
