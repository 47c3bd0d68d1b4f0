"""The pictures that quality metrics compare with, and their features: fresh renderings of the prompts, or a folder of the user's.

python -m parity.reference --prompts results/prompts/x/0.json ... --count 512 --out results/reference/x.npz
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from parity.base.command import one_line, pin_threads
from parity.base.files import read_json, write_arrays
from parity.embedded.scenes import SIZE, ground_truth, reduced
from parity.metrics.features import picture_features
from parity.models import checkpoints

Image.MAX_IMAGE_PIXELS = 64_000_000  # a larger picture is an error, not a warning


def renderings(captions: list[str], count: int, side: int = SIZE) -> np.ndarray:
    """uint8 [count, side, side, 3]: the captions in turn, each time a new picture, reduced as those that a model of this size was trained on."""
    return reduced(np.stack([ground_truth(captions[i % len(captions)], seed=i) for i in range(count)]), side)


def folder(path: Path, count: int) -> np.ndarray:
    """The first `count` PNG pictures of a folder by name; all must be of one size."""
    files = sorted(path.glob("*.png"))[:count]
    if len(files) < count:
        raise ValueError(
            f"reference_folder = {str(path)!r}: holds {len(files)} PNG files; allowed: at least reference_images = {count}"
        )
    pictures = [np.asarray(Image.open(f, formats=["PNG"]).convert("RGB")) for f in files]
    sizes = {p.shape for p in pictures}
    if len(sizes) > 1:
        raise ValueError(f"reference_folder = {str(path)!r}: pictures of {len(sizes)} sizes; allowed: one size")
    return np.stack(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--folder", default="")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    captions = list(dict.fromkeys(e["caption"] for p in a.prompts for e in read_json(p)))
    manifest = read_json(a.checkpoint)
    side = checkpoints.side(manifest) if manifest["source"] == "embedded" else SIZE
    pixels = folder(Path(a.folder), a.count) if a.folder else renderings(captions, a.count, side)
    clip = checkpoints.load_clip(manifest, a.device)
    features = {} if clip is None else {"features": picture_features(pixels, clip)}
    write_arrays(a.out, pixels=pixels, **features)


if __name__ == "__main__":
    one_line(main)
