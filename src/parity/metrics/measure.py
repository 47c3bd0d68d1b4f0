"""Figures of one cell: speed from its records, likelihood under the target, quality of its pictures.

    python -m parity.measure --shards 0-of-1.npz --images images/0-of-1.npz --logp logp.npz --checkpoint manifest.json \\
        --reference features.npz --threads 1 --device cpu --out metrics.json --features features.npz

The log-probabilities are those that the teacher-forced layer has computed (`parity.compare`): one forward serves both.

`features` features.npz holds what the paired tests read: a row per image with CLIP features, cosine and log-probabilities.
"""

import argparse
from pathlib import Path

import numpy as np

from parity.base.command import one_line, pin_threads
from parity.base.files import join, read_arrays, read_json, read_shards, write_arrays, write_json
from parity.metrics.cell import cell_metrics
from parity.metrics.features import cell_features
from parity.metrics.fid import reference_half
from parity.models import checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("logp", "checkpoint", "reference", "out", "features"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=Path, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    manifest, shard, images, logp = (
        read_json(a.checkpoint),
        read_shards(a.shards),
        join(a.images),
        read_arrays(a.logp)["logp"],
    )
    ids, pixels = images["ids"], images["pixels"]
    if not np.array_equal(ids, shard.ids):
        raise ValueError(f"{a.images[0]}: its ids are not those of {a.shards[0]}; delete it and run again")
    clip = checkpoints.load_clip(manifest, a.device)
    if clip is None:  # a model without a picture network of its own: speed and likelihood stand alone
        features, reference = None, None
    else:
        features = cell_features(shard.ids, shard.captions, pixels, clip)
        reference = read_arrays(a.reference)["features"]
    half = None if reference is None else reference_half(reference)
    write_arrays(
        a.features,
        ids=shard.ids,
        captions=shard.captions,
        logp=logp,
        **{k: v for k, v in (features or {}).items() if k != "ids"},
    )
    write_json(a.out, cell_metrics(shard, features, reference, half, logp))


if __name__ == "__main__":
    one_line(main)
