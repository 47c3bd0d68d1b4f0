"""Do the coupled decoders return the very tokens of plain sampling under the same noise, on every prompt?

python benchmarks/coupled.py [--images 64] [--dtype float64] 'jacobi: {coupling: shared}' 'mtj' ...

The report's pathwise layer asks the same of a few images of each run. A method that falls short names its first differences.
"""

import argparse

import numpy as np
import torch
from common import sampling, scenes, variant

from parity.decode.generate import DTYPES, generate
from parity.experiment import config
from parity.models import checkpoints

DEFAULT = [
    "jacobi: {window: 16, coupling: shared}",
    "sjd_coupled: {window: 32}",
    "mtj: {window: 24, branches: 24}",
    "eagle: {total: 10, depth: 3, top_k: 3}",
    "eagle: {total: 10, depth: 3, top_k: 3, rank: race}",
    "lantern: {total: 10, depth: 3, top_k: 3, delta: 0.0}",
    "vvs: {total: 10, depth: 3, top_k: 3, delta: 0.0, schedule: 'off'}",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", default=DEFAULT)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--dtype", choices=DTYPES, default="float64")
    parser.add_argument("--guidance", type=float, default=1.8)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest, encoded = scenes(a.images)

    def tokens(method: str, options: dict) -> np.ndarray:
        loaded = checkpoints.load(manifest, "cpu", DTYPES[a.dtype], config.needs(method))
        spec = {
            "method": method,
            "options": config.options(method, options),
            "sampling": sampling(a.guidance),
            "seed": a.seed,
            "dtype": a.dtype,
        }
        return generate(loaded, spec, encoded, a.batch).tokens

    plain = tokens("ar", {})
    for text in a.variants:
        differs = (tokens(*variant(text)) != plain).any(1)
        first = f"; differs first on: {encoded['captions'][int(differs.argmax())]}" if differs.any() else ""
        print(f"{text:70s} {(~differs).sum()} of {len(differs)} prompts equal, {a.dtype}{first}", flush=True)


if __name__ == "__main__":
    main()
