"""What `coupled` has drawn after some rounds, beside plain decoding: the image of docs/explanation/heads.md.

    python benchmarks/rounds.py [--images 4] [--after 1 2 4 8] [--out docs/rounds.png] ['coupled: {reads: drafts}']

A row an image. On the left plain decoding under the noise that the decoder begins with; then the tokens of all places
after this many rounds, final or not; then the image it returns. Embedded MAR, T = 25.
"""

from collections.abc import Iterator

import numpy as np
import torch
from common import make_manifest, make_spec, number_images, parse_flags
from parity_decoders.continuous.mar import write
from parity_decoders.steps import Draw
from PIL import Image, ImageDraw

from parity.base.row_noise import batch_noise
from parity.decode import loop

SCALE = 2  # times that images are enlarged
GAP = 6  # pixels between images
HEAD = 18  # pixels above the images, for the names of columns


def record_rounds(steps: Iterator[Draw], standing: list[torch.Tensor]) -> Iterator[Draw]:
    """Yield the steps, and append to `standing` the tokens of all places after each, where a step has them."""
    for step in steps:
        if step.standing is not None:
            standing.append(step.standing)
        yield step


def draw_sheet(images: dict[str, np.ndarray]) -> Image.Image:
    """Draw a sheet with a column for each name, and images uint8 [n, H, W, 3] below it."""
    n, H, W, _ = next(iter(images.values())).shape
    width = SCALE * W + GAP
    height = SCALE * H + GAP
    sheet = Image.new("RGB", (width * len(images) + GAP, HEAD + height * n), "white")
    for column, (name, pixels) in enumerate(images.items()):
        ImageDraw.Draw(sheet).text((GAP + column * width, 3), name, fill="black")
        for row, image in enumerate(pixels):
            large = Image.fromarray(image).resize((SCALE * W, SCALE * H), Image.Resampling.NEAREST)
            sheet.paste(large, (GAP + column * width, HEAD + row * height))
    return sheet


def main() -> None:
    """Decode images plainly and by the first variant; draw both, and the state after some rounds, side by side."""
    variants = ["coupled: {reads: drafts, window: 64, sweeps: 4}"]
    a = parse_flags(__doc__, variants, images=4, after=[1, 2, 4, 8], out="docs/rounds.png")
    manifest = make_manifest("continuous", "mar")
    settings = {"steps": 25, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    columns: dict[str, np.ndarray] = {}
    for variant in ("", a.variants[0]):
        spec = make_spec("continuous", variant, 0, sampling=settings)
        rows = number_images(a.images)
        standing: list[torch.Tensor] = []
        loaded = loop.load("continuous", manifest, spec)
        noise = batch_noise(0, rows["ids"].tolist())
        model, start, steps = loop.start_decoding("continuous", loaded, spec)(rows, noise)
        result = loop.import_kind("continuous").record(model, start, record_rounds(steps, standing))
        for number in a.after[: len(standing)]:
            raster = write(torch.zeros_like(standing[0]), start.order, standing[number - 1])
            columns[f"after {number} of {len(standing)}"] = loaded.images(raster)
        columns["coupled" if variant else "plain"] = loaded.images(result.tokens)
    draw_sheet(columns).save(a.out, optimize=True)


if __name__ == "__main__":
    main()
