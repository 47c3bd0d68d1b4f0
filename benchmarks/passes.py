"""Passes per image of any variants on the embedded model, with intervals: what decoders trade in nodes for passes.

    python benchmarks/passes.py [--images 128] [--seeds 0 1] 'sjd' 'mtj: {branches: 96}' ...

The others are compared with the first variant, image by image. Intervals are 95 % normal ones over prompts,
seeds averaged within a prompt.
"""

import numpy as np
from common import decode_rows, encode_captions, make_sampling, make_spec, parse_flags

DEFAULT = ["sjd", "sjd_coupled: {window: 64, warm: true}", "sjd_pac: {window: 50}", "mtj"]
DEFAULT += ["mtj: {branches: 96, ranks: 6, depth: 12}"]


def main() -> None:
    """Decode the captions by each variant on each seed; print passes, their ratio to the first variant's, and nodes."""
    a = parse_flags(__doc__, DEFAULT, images=128, seeds=[0, 1], guidance=1.8)
    manifest, rows = encode_captions(a.images)
    reference = None
    for variant in a.variants:
        specs = [make_spec("discrete", variant, seed, sampling=make_sampling(a.guidance)) for seed in a.seeds]
        shards = [decode_rows("discrete", manifest, spec, rows, 32) for spec in specs]
        passes = np.mean([s.nfe for s in shards], 0)
        nodes = np.mean([s.nodes for s in shards], 0)
        reference = passes if reference is None else reference
        error = 1.96 * passes.std(ddof=1) / len(passes) ** 0.5
        ratio = passes.mean() / reference.mean()
        spread = 1.96 * (passes - ratio * reference).std(ddof=1) / len(passes) ** 0.5 / reference.mean()
        per_pass = nodes.sum() / passes.sum()
        per_token = nodes.mean() / shards[0].tokens.shape[1]
        calls = np.mean([s.draft_calls / s.passes for s in shards])
        cost = f"NFE {passes.mean():6.1f} +- {error:4.1f}  ratio {ratio:.3f} +- {spread:.3f}"
        cost += f"  nodes a pass {per_pass:5.1f}, a token {per_token:5.1f}"
        print(f"{variant:50s} {cost}  companion's calls a pass {calls:.1f}", flush=True)


if __name__ == "__main__":
    main()
