"""What a picture of 32x32 pixels keeps: CLIP cosine with its caption and error of the tokenizer, ground-truth renderings, beside 64x64.

python benchmarks/sizes.py [--images 200] [--threads 1]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from parity.embedded.scenes import SIZE, ground_truth, reduced
from parity.experiment.config import ModelSpec
from parity.metrics.features import cell_features
from parity.metrics.render import render
from parity.models import checkpoints
from parity.models.discrete.vq import VQ
from parity.training.loop import to_pictures


def rebuilt(vq: VQ, pixels: np.ndarray, batch: int = 32) -> np.ndarray:
    """Pictures through the tokenizer and back."""
    with torch.inference_mode():
        tokens = [vq.encode(to_pictures(pixels[i : i + batch])).numpy() for i in range(0, len(pixels), batch)]
    return render(vq, np.concatenate(tokens), "cpu")


def bilinear(pixels: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(x).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for x in pixels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest = checkpoints.get("scenes", ModelSpec(), Path("results"))
    vq, clip = checkpoints.load(manifest).vq, checkpoints.load_clip(manifest)
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    names, real = np.array(captions), np.stack([ground_truth(caption, i) for i, caption in enumerate(captions)])
    for side in (64, 32):
        pixels = reduced(real, side)
        made = rebuilt(vq, pixels)
        for name, shown in {"as drawn": pixels, "as drawn, bilinear": bilinear(pixels), "tokenizer": made}.items():
            score = cell_features(names, names, shown, clip)["cosine"].mean()
            print(f"{side}x{side} {name:18s} cosine {score:.3f}", flush=True)
        print(
            f"{side}x{side} tokenizer: mean absolute error {np.abs(made / 255 - pixels / 255).mean():.3f}", flush=True
        )


if __name__ == "__main__":
    main()
