"""Are the embedded model's samples recognisable? CLIP-score of plain sampling beside that of ground-truth renderings.

python benchmarks/recognisable.py [--images 200] [--guidance 1.8] [--threads 1]
"""

from pathlib import Path

import numpy as np
from common import asked, captioned, cell, guided

from parity.decode import loop
from parity.embedded.scenes import draw_ground_truth
from parity.metrics.networks import clip
from parity.metrics.networks.clip import cell_features


def main() -> None:
    a = asked(__doc__, images=200, guidance=1.8)
    manifest, rows = captioned(a.images)
    spec, captions = cell("discrete", "", 0, sampling=guided(a.guidance)), rows["captions"]
    loaded, net = loop.load("discrete", manifest, spec), clip.load(Path(manifest["files"]["clip"]))
    made = loaded.pictures(loop.decode("discrete", loaded, spec, rows, 100).tokens)
    real = np.stack([draw_ground_truth(caption, i) for i, caption in enumerate(captions)])
    ours, truth = (cell_features(captions, pixels, net)["cosine"] for pixels in (made, real))
    error = ours.std(ddof=1) / len(captions) ** 0.5
    what = f"{len(captions)} held-out captions, guidance {a.guidance}"
    print(f"{what}: {ours.mean():.3f} +- {error:.3f} of {truth.mean():.3f}, {ours.mean() / truth.mean():.0%}")


if __name__ == "__main__":
    main()
