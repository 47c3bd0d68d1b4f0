"""What a picture of 32x32 pixels keeps beside 64x64: its CLIP cosine with its caption, and the tokenizer's error.

python benchmarks/sizes.py [--images 200] [--threads 1]
"""

from pathlib import Path

import numpy as np
import torch
from common import asked, embedded
from PIL import Image

from parity.embedded.scenes import SIZE, draw_ground_truth, reduce_pictures
from parity.metrics.networks import clip
from parity.metrics.networks.clip import cell_features
from parity.models.discrete import load
from parity.models.discrete.vq import to_pictures


@torch.inference_mode()
def rebuilt(loaded: load.Loaded, pixels: np.ndarray, batch: int = 32) -> np.ndarray:
    """Pictures through the tokenizer and back."""
    parts = to_pictures(pixels).split(batch)
    return loaded.pictures(torch.cat([loaded.nets["vq"].encode(part) for part in parts]))


def bilinear(pixels: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(x).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for x in pixels])


def main() -> None:
    a = asked(__doc__, images=200)
    manifest = embedded("discrete", "llamagen")
    loaded, net = load.load(manifest), clip.load(Path(manifest["files"]["clip"]))
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    names, real = np.array(captions), np.stack([draw_ground_truth(caption, i) for i, caption in enumerate(captions)])
    for side in (64, 32):
        pixels = reduce_pictures(real, side)
        made = rebuilt(loaded, pixels)
        for name, shown in {"as drawn": pixels, "as drawn, bilinear": bilinear(pixels), "tokenizer": made}.items():
            score = cell_features(names, shown, net)["cosine"].mean()
            print(f"{side}x{side} {name:18s} cosine {score:.3f}", flush=True)
        error = np.abs(made / 255 - pixels / 255).mean()
        print(f"{side}x{side} tokenizer: mean absolute error {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
