"""Tokens to pictures: the tokenizer's decoder over one shard.

python -m parity.render --shard shards/0.npz --checkpoint manifest.json --threads 1 --device cpu --out images/0.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from parity.base.command import one_line, pin_threads, progress
from parity.base.files import read_json, read_shard, write_arrays
from parity.models import checkpoints
from parity.models.discrete.vq import VQ, to_uint8


def render(vq: VQ, tokens: np.ndarray, device: str, batch: int = 32) -> np.ndarray:
    """tokens [n, L] -> pixels uint8 [n, H, W, 3]."""
    parts = [torch.from_numpy(tokens[i : i + batch]).long() for i in range(0, len(tokens), batch)]
    with torch.inference_mode():
        pictures = [
            to_uint8(vq.decode(part.to(device))).permute(0, 2, 3, 1).cpu().numpy()
            for part in progress(parts, len(parts), "render")
        ]
    return np.concatenate(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("shard", "checkpoint", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    shard = read_shard(a.shard)
    vq = checkpoints.load(read_json(a.checkpoint), a.device).vq
    write_arrays(a.out, ids=shard.ids, pixels=render(vq, shard.tokens, a.device))


if __name__ == "__main__":
    one_line(main)
