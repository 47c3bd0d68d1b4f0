"""Are the embedded model's samples recognisable? CLIP-score of plain sampling beside that of ground-truth renderings.

python benchmarks/recognisable.py [--images 200] [--guidance 1.8] [--threads 1]
"""

from pathlib import Path

import numpy as np
from common import encode_captions, make_sampling, make_spec, parse_flags

from parity.decode import loop
from parity.embedded.scenes import draw_ground_truth
from parity.metrics.networks import clip
from parity.metrics.networks.clip import cell_features


def main() -> None:
    """Decode captions plainly and print the mean CLIP-score of the samples, and of renderings of the captions."""
    a = parse_flags(__doc__, images=200, guidance=1.8)
    manifest, rows = encode_captions(a.images)
    captions = rows["captions"]
    spec = make_spec("discrete", "", 0, sampling=make_sampling(a.guidance))
    loaded = loop.load("discrete", manifest, spec)
    net = clip.load(Path(manifest["files"]["clip"]))
    samples = loaded.pictures(loop.decode("discrete", loaded, spec, rows, 100).tokens)
    real = np.stack([draw_ground_truth(caption, i) for i, caption in enumerate(captions)])
    ours, truth = (cell_features(captions, pixels, net)["cosine"] for pixels in (samples, real))
    error = ours.std(ddof=1) / len(captions) ** 0.5
    setting = f"{len(captions)} held-out captions, guidance {a.guidance}"
    print(f"{setting}: {ours.mean():.3f} +- {error:.3f} of {truth.mean():.3f}, {ours.mean() / truth.mean():.0%}")


if __name__ == "__main__":
    main()
