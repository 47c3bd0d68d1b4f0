"""Are the embedded model's samples recognisable? CLIP-score of plain sampling beside that of ground-truth renderings of the same captions.

python benchmarks/recognisable.py [--images 200] [--guidance 1.8] [--threads 1]
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from parity.decode.generate import generate
from parity.embedded.scenes import ground_truth
from parity.experiment.config import ModelSpec
from parity.inputs.captions import encode
from parity.metrics.features import cell_features
from parity.metrics.render import render
from parity.models import checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--guidance", type=float, default=1.8)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest = checkpoints.get("scenes", ModelSpec(), Path("results"))
    loaded, clip = checkpoints.load(manifest), checkpoints.load_clip(manifest)
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]  # held out from training
    embeddings, valid = encode(manifest, captions, "cpu")
    names = np.array(captions)
    encoded = {"ids": names, "captions": names, "embeddings": embeddings, "valid": valid}
    sampling = {"guidance": a.guidance, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    spec = {"method": "ar", "options": {}, "sampling": sampling, "seed": 0, "dtype": "float32"}
    made = render(loaded.vq, generate(loaded, spec, encoded, 100).tokens, "cpu")
    real = np.stack([ground_truth(caption, i) for i, caption in enumerate(captions)])
    scores = [cell_features(names, names, pixels, clip)["cosine"] for pixels in (made, real)]
    error = scores[0].std(ddof=1) / len(captions) ** 0.5
    ratio = scores[0].mean() / scores[1].mean()
    print(
        f"{len(captions)} held-out captions, guidance {a.guidance}: {scores[0].mean():.3f} +- {error:.3f} of {scores[1].mean():.3f}, {ratio:.0%}"
    )


if __name__ == "__main__":
    main()
