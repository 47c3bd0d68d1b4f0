"""An image that fills in: frames of images as they were decoded, several decoders side by side."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from parity.generate import Made

GREY = 128  # of slots that are open
SIDE = 256  # pixels of an image's side, at least
LONGEST = 12.0  # seconds that an animation takes, at most
MOST_FRAMES = 300
REST = 2.0  # seconds for which the last frame stays
LINE = 22  # pixels of the line of text below an image

Pace = Literal["passes", "seconds"]


def mask_open(image: Any, final: np.ndarray, after: int) -> Any:
    """Make the image after this many passes: its cells that are open then are grey. final [rows, columns]: the pass in
    which each cell became final."""
    from PIL import Image

    pixels = np.asarray(image).copy()
    cell = np.array(pixels.shape[:2]) // final.shape
    pixels[np.kron(final > after, np.ones(cell, bool))] = GREY
    return Image.fromarray(pixels)


def tile(images: Sequence[Any]) -> Any:
    """Put images of one size in a square grid, enlarged by a whole number to SIDE pixels at least."""
    from PIL import Image

    across = math.ceil(math.sqrt(len(images)))
    width, height = images[0].size
    sheet = Image.new("RGB", (width * across, height * -(-len(images) // across)), (GREY,) * 3)
    for i, image in enumerate(images):
        sheet.paste(image, (i % across * width, i // across * height))
    scale = max(1, -(-SIDE // sheet.width))
    return sheet.resize((sheet.width * scale, sheet.height * scale), Image.Resampling.NEAREST)


def draw_animation(sides: Sequence[Sequence["Made"]], pace: Pace) -> tuple[list[Any], list[int]]:
    """Draw the frames of images that were decoded together, one list a decoder, side by side, and their durations in
    milliseconds. pace: each pass takes as long as any other, or as long as it took; seconds are then shown, too."""
    from PIL import Image, ImageDraw, ImageFont

    ends = [max(int(made.final.max()) for made in side) for side in sides]
    seconds = [sum(made.seconds for made in side) for side in sides]
    of_pass = [1.0 if pace == "passes" else total / end for total, end in zip(seconds, ends, strict=True)]
    whole = max(cost * end for cost, end in zip(of_pass, ends, strict=True))
    step = max(min(of_pass), whole / MOST_FRAMES)
    times = [*np.arange(0, whole, step), whole]
    font = ImageFont.load_default(size=13)
    frames = []
    for now in times:
        columns = []
        for side, cost, end, total in zip(sides, of_pass, ends, seconds, strict=True):
            done = min(end, math.floor(now / cost + 1e-9))
            sheet = tile([mask_open(made.image, made.final, done) for made in side])
            framed = Image.new("RGB", (sheet.width, sheet.height + LINE), "white")
            framed.paste(sheet, (0, 0))
            text = f"{side[0].facts['method']}: pass {done} of {end}"
            text += f", {total * done / end:.2f} s" if pace == "seconds" else ""
            ImageDraw.Draw(framed).text((4, sheet.height + 3), text, "black", font)
            columns.append(framed)
        frame = Image.new("RGB", (sum(c.width for c in columns) + 8 * (len(columns) - 1), columns[0].height), "white")
        for column, left in zip(columns, np.cumsum([0] + [c.width + 8 for c in columns]).tolist(), strict=False):
            frame.paste(column, (left, 0))
        frames.append(frame)
    length = whole if pace == "seconds" else 0.05 * whole
    duration = max(20, round(1000 * min(length, LONGEST) / len(frames)))
    return frames, [duration] * (len(frames) - 1) + [round(1000 * REST)]
