"""Measure what a picture of 32x32 pixels keeps of 64x64: its CLIP cosine with its caption, and the tokenizer's error.

python benchmarks/sizes.py [--images 200] [--threads 1]
"""

from pathlib import Path

import numpy as np
import torch
from common import make_manifest, parse_flags
from PIL import Image

from parity.embedded.scenes import SIZE, draw_ground_truth, reduce_pictures
from parity.metrics.networks import clip
from parity.metrics.networks.clip import cell_features
from parity.models.discrete import load
from parity.models.discrete.vq import to_pictures


@torch.inference_mode()
def reconstruct(loaded: load.Loaded, pixels: np.ndarray, batch: int = 32) -> np.ndarray:
    """Encode pictures uint8 [n, H, W, 3] by the image tokenizer and decode them again."""
    batches = to_pictures(pixels).split(batch)
    return loaded.pictures(torch.cat([loaded.nets["vq"].encode(images) for images in batches]))


def resize_bilinearly(pixels: np.ndarray) -> np.ndarray:
    """Resize pictures uint8 [n, H, W, 3] to SIZE x SIZE."""
    return np.stack([np.asarray(Image.fromarray(x).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for x in pixels])


def main() -> None:
    """Print the CLIP cosine of renderings at 64 and 32 pixels, as drawn and through the tokenizer, and its error."""
    a = parse_flags(__doc__, images=200)
    manifest = make_manifest("discrete", "llamagen")
    loaded = load.load(manifest)
    net = clip.load(Path(manifest["files"]["clip"]))
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    real = np.stack([draw_ground_truth(caption, i) for i, caption in enumerate(captions)])
    for side in (64, 32):
        pixels = reduce_pictures(real, side)
        rebuilt = reconstruct(loaded, pixels)
        shown = {"as drawn": pixels, "as drawn, bilinear": resize_bilinearly(pixels), "tokenizer": rebuilt}
        for name, pictures in shown.items():
            score = cell_features(np.array(captions), pictures, net)["cosine"].mean()
            print(f"{side}x{side} {name:18s} cosine {score:.3f}", flush=True)
        error = np.abs(rebuilt / 255 - pixels / 255).mean()
        print(f"{side}x{side} tokenizer: mean absolute error {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
