"""Figures of one cell: speed from its records, likelihood under the target, quality of its pictures.

    python -m parity.measure --spec spec.json --prompts 0.npz --shards 0-of-1.npz --images images/0-of-1.npz --checkpoint manifest.json \\
        --reference features.npz --threads 1 --device cpu --out metrics.json --features features.npz

`features` features.npz holds what the paired tests read: a row per image with CLIP features, cosine and log-probabilities.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from parity import checkpoints
from parity.command import one_line, pin_threads, progress
from parity.generate import DTYPES
from parity.metrics.cell import cell_metrics
from parity.metrics.features import cell_features
from parity.metrics.fid import reference_half
from parity.metrics.likelihood import token_log_probabilities
from parity.sampling import Sampled, Sampling
from parity.storage import Shard, join, read_arrays, read_encoded, read_json, read_shards, write_arrays, write_json


def log_probabilities(
    loaded: checkpoints.Loaded, shard: Shard, encoded: dict[str, np.ndarray], sampling: Sampling, batch: int
) -> np.ndarray:
    """[n, L] log-probability of the decoder's own tokens under the law that was to be sampled; NaN where the grammar forces."""
    found = []
    starts = range(0, len(shard.ids), batch)
    for i in progress(starts, len(starts), "likelihood"):
        model = Sampled(
            loaded.decodable(encoded["embeddings"][i : i + batch], encoded["valid"][i : i + batch], sampling.guidance != 1), sampling
        )
        tokens = torch.from_numpy(shard.tokens[i : i + batch]).to(loaded.device)
        found.append(token_log_probabilities(model, tokens).cpu().numpy())
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("spec", "checkpoint", "reference", "out", "features"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=Path, nargs="+", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    spec, manifest, shard = read_json(a.spec), read_json(a.checkpoint), read_shards(a.shards)
    images = join(a.images)
    ids, pixels = images["ids"], images["pixels"]
    if not np.array_equal(ids, shard.ids):
        raise ValueError(f"{a.images[0]}: its ids are not those of {a.shards[0]}; delete it and run again")
    loaded = checkpoints.load(manifest, a.device, DTYPES[spec["dtype"]])
    encoded = read_encoded(a.prompts, shard)
    logp = log_probabilities(loaded, shard, encoded, Sampling(**spec["sampling"]), a.batch)
    clip = checkpoints.load_clip(manifest, a.device)
    if clip is None:  # a model without a picture network of its own: speed and likelihood stand alone
        features, reference = None, None
    else:
        features = cell_features(shard.ids, shard.captions, pixels, clip)
        reference = read_arrays(a.reference)["features"]
    half = None if reference is None else reference_half(reference)
    write_arrays(a.features, ids=shard.ids, captions=shard.captions, logp=logp, **{k: v for k, v in (features or {}).items() if k != "ids"})
    write_json(a.out, cell_metrics(shard, features, reference, half, logp))


if __name__ == "__main__":
    one_line(main)
