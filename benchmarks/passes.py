"""Passes per image of any variants on the embedded model, with intervals: what decoders trade in nodes for passes.

    python benchmarks/passes.py [--images 128] [--seeds 0 1] 'sjd' 'mtj: {branches: 96}' ...

The first variant is the one the others are compared with, image by image. Intervals are 95 % normal ones over prompts,
seeds averaged within a prompt.
"""

import numpy as np
from common import asked, captioned, cell, decoded, guided

DEFAULT = ["sjd", "sjd_coupled: {window: 64, warm: true}", "sjd_pac: {window: 50}", "mtj"]
DEFAULT += ["mtj: {branches: 96, ranks: 6, depth: 12}"]


def main() -> None:
    a = asked(__doc__, DEFAULT, images=128, seeds=[0, 1], guidance=1.8)
    manifest, rows = captioned(a.images)
    first = None
    for variant in a.variants:
        specs = [cell("discrete", variant, seed, sampling=guided(a.guidance)) for seed in a.seeds]
        shards = [decoded("discrete", manifest, spec, rows, 32) for spec in specs]
        passes, evaluated = np.mean([s.nfe for s in shards], 0), np.mean([s.nodes for s in shards], 0)
        first = passes if first is None else first
        error = 1.96 * passes.std(ddof=1) / len(passes) ** 0.5
        ratio = passes.mean() / first.mean()
        spread = 1.96 * (passes - ratio * first).std(ddof=1) / len(passes) ** 0.5 / first.mean()
        each, per = evaluated.sum() / passes.sum(), evaluated.mean() / shards[0].tokens.shape[1]
        cost = f"NFE {passes.mean():6.1f} +- {error:4.1f}  ratio {ratio:.3f} +- {spread:.3f}"
        print(f"{variant:50s} {cost}  nodes a pass {each:5.1f}, a token {per:5.1f}", flush=True)


if __name__ == "__main__":
    main()
