"""Passes with companions that `parity train` made of the embedded model, beside those with the ones it ships with.

    parity train heads --prompts captions.txt --out companions
    python benchmarks/companions.py companions/heads.yaml [--images 64]

Captions are held out from training. Intervals are 95 % normal ones over images; of the ratio image by image.
"""

from pathlib import Path

import numpy as np
from common import parse_flags

from parity.generate import load

OPTIONS = {  # 32 nodes a pass, as in config.yaml
    "mtj_heads": {"window": 16, "branches": 16},
    "mtj_draft": {"window": 16, "branches": 16, "rounds": 1},
    "eagle": {"total": 31, "depth": 4, "top_k": 6},
}


def main() -> None:
    """Decode the captions with each pair of companions, and print passes and their ratio."""
    a = parse_flags(__doc__, [], images=64)
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    shipped = load("", "config.yaml")
    for file in a.variants:
        trained = load("", file)
        method = next(name for name in OPTIONS if name in trained.config.image.methods)  # type: ignore[union-attr]
        passes = []
        for generator in (shipped, trained):
            made = generator.generate(captions, method=method, seed=0, batch=len(captions), **OPTIONS[method])
            passes.append(np.array([picture.passes for picture in made]))
        old, new = passes
        ratio = new.mean() / old.mean()
        spread = 1.96 * (new - ratio * old).std(ddof=1) / len(old) ** 0.5 / old.mean()
        print(
            f"{method}: {old.mean():.1f} passes shipped, {new.mean():.1f} trained, {ratio:.3f} +- {spread:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
