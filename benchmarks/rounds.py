"""What `coupled` has drawn after some rounds, beside plain decoding: the picture of docs/explanation/heads.md.

    python benchmarks/rounds.py [--images 4] [--after 1 2 4 8] [--out docs/rounds.png] ['coupled: {reads: drafts}']

A row an image. On the left plain decoding under the noise that the decoder begins with; then what stands at all places
after so many rounds, final or not; then the image it returns. Embedded MAR, T = 25.
"""

from collections.abc import Iterator

import numpy as np
import torch
from common import asked, cell, embedded, numbered
from parity_decoders.continuous.mar import write
from parity_decoders.steps import Draw
from PIL import Image, ImageDraw

from parity.base.row_noise import batch_noise
from parity.decode import loop

SCALE, GAP, HEAD = 2, 6, 18  # of a picture's pixels; around pictures; above a column


def watched(steps: Iterator[Draw], standing: list[torch.Tensor]) -> Iterator[Draw]:
    """The steps, and what stood at all places after each."""
    for drawn in steps:
        if drawn.standing is not None:
            standing.append(drawn.standing)
        yield drawn


def drawn(pictures: dict[str, np.ndarray]) -> Image.Image:
    """Pictures uint8 [n, H, W, 3] of each column, under its name."""
    n, H, W, _ = next(iter(pictures.values())).shape
    wide, high = SCALE * W + GAP, SCALE * H + GAP
    sheet = Image.new("RGB", (wide * len(pictures) + GAP, HEAD + high * n), "white")
    for column, (name, some) in enumerate(pictures.items()):
        ImageDraw.Draw(sheet).text((GAP + column * wide, 3), name, fill="black")
        for row, one in enumerate(some):
            large = Image.fromarray(one).resize((SCALE * W, SCALE * H), Image.Resampling.NEAREST)
            sheet.paste(large, (GAP + column * wide, HEAD + row * high))
    return sheet


def main() -> None:
    a = asked(
        __doc__,
        ["coupled: {reads: drafts, window: 64, sweeps: 4}"],
        images=4,
        after=[1, 2, 4, 8],
        out="docs/rounds.png",
    )
    manifest, leaf = embedded("continuous", "mar"), loop.import_kind("continuous")
    settings = {"steps": 25, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    columns: dict[str, np.ndarray] = {}
    for variant in ("", a.variants[0]):
        spec, rows, standing = cell("continuous", variant, 0, sampling=settings), numbered(a.images), []
        loaded = loop.load("continuous", manifest, spec)
        model, start, steps = loop.start_decoding("continuous", loaded, spec)(
            rows, batch_noise(0, rows["ids"].tolist())
        )
        done = leaf.record(model, start, watched(steps, standing))
        for number in a.after[: len(standing)]:
            raster = write(torch.zeros_like(standing[0]), start.order, standing[number - 1])
            columns[f"after {number} of {len(standing)}"] = loaded.pictures(raster)
        columns["coupled" if variant else "plain"] = loaded.pictures(done.tokens)
    drawn(columns).save(a.out, optimize=True)


if __name__ == "__main__":
    main()
