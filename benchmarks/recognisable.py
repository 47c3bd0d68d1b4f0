"""Are the embedded model's samples recognisable? CLIP-score of plain sampling beside that of ground-truth renderings,
and what a reader of pictures that knows the renderer finds right in both, and in renderings seen through the VQ.

python benchmarks/recognisable.py [--images 200] [--guidance 1.8] [--threads 1]
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from common import encode_captions, make_sampling, make_spec, parse_flags
from scene_reader import check_picture

from parity.decode import loop
from parity.embedded.scenes import draw_ground_truth, parse
from parity.metrics.networks import clip
from parity.metrics.networks.clip import cell_features
from parity.models.discrete import vq


def count_right(captions: list[str], pictures: np.ndarray) -> str:
    """Count in how many pictures each aspect of their captions is right, in percent."""
    found = defaultdict(list)
    for caption, pixels in zip(captions, pictures, strict=True):
        for aspect, right in check_picture(parse(str(caption)), pixels).items():
            found[aspect].append(right)
    return ", ".join(f"{aspect} {np.mean(right):.0%}" for aspect, right in found.items())


def main() -> None:
    """Decode captions plainly; print the mean CLIP-score of samples and renderings, and what is right in each."""
    a = parse_flags(__doc__, images=200, guidance=1.8)
    manifest, rows = encode_captions(a.images)
    captions = rows["captions"]
    spec = make_spec("discrete", "", 0, sampling=make_sampling(a.guidance))
    loaded = loop.load("discrete", manifest, spec)
    net = clip.load(Path(manifest["files"]["clip"]))
    samples = loaded.pictures(loop.decode("discrete", loaded, spec, rows, 100).tokens)
    real = np.stack([draw_ground_truth(caption, i) for i, caption in enumerate(captions)])
    autoencoder = vq.load(Path(manifest["files"]["vq"]))
    with torch.inference_mode():
        coded = vq.to_pixels(autoencoder.decode(autoencoder.encode(vq.to_pictures(real))))
    ours, truth = (cell_features(captions, pixels, net)["cosine"] for pixels in (samples, real))
    error = ours.std(ddof=1) / len(captions) ** 0.5
    setting = f"{len(captions)} held-out captions, guidance {a.guidance}"
    print(f"{setting}: {ours.mean():.3f} +- {error:.3f} of {truth.mean():.3f}, {ours.mean() / truth.mean():.0%}")
    for name, pictures in (("samples", samples), ("renderings", real), ("renderings, through the VQ", coded)):
        print(f"{name}: {count_right(captions, pictures)}", flush=True)


if __name__ == "__main__":
    main()
