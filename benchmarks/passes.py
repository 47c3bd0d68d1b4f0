"""Passes per image of any variants on the embedded model, with intervals: what the decoders trade in nodes for passes.

python benchmarks/passes.py [--images 128] [--seeds 0 1] 'sjd' 'mtj: {branches: 96}' ...

The first variant is the one the others are compared with, image by image. Intervals are 95 % normal ones over prompts, seeds averaged within a prompt.
"""

import argparse

import numpy as np
import torch
from common import sampling, scenes, variant

from parity.decode.generate import generate
from parity.experiment import config
from parity.models import checkpoints

DEFAULT = [
    "sjd",
    "sjd_coupled: {window: 64, warm: true}",
    "sjd_pac: {window: 50}",
    "mtj",
    "mtj: {branches: 96, ranks: 6, depth: 12}",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", default=DEFAULT)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--guidance", type=float, default=1.8)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest, encoded = scenes(a.images)
    first = None
    for text in a.variants:
        method, options = variant(text)
        loaded, nfe, nodes = checkpoints.load(manifest, needs=config.needs(method)), [], []
        for seed in a.seeds:
            spec = {
                "method": method,
                "options": config.options(method, options),
                "sampling": sampling(a.guidance),
                "seed": seed,
                "dtype": "float32",
            }
            shard = generate(loaded, spec, encoded, 32)
            nfe.append(shard.nfe)
            nodes.append(shard.nodes)
        passes, evaluated = np.mean(nfe, 0), np.mean(nodes, 0)
        first = passes if first is None else first
        error = 1.96 * passes.std(ddof=1) / len(passes) ** 0.5
        ratio = passes.mean() / first.mean()
        spread = 1.96 * (passes - ratio * first).std(ddof=1) / len(passes) ** 0.5 / first.mean()
        each, per = evaluated.sum() / passes.sum(), evaluated.mean() / shard.tokens.shape[1]
        print(
            f"{text:50s} NFE {passes.mean():6.1f} +- {error:4.1f}  ratio {ratio:.3f} +- {spread:.3f}  nodes a pass {each:5.1f}, a token {per:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
