"""How good are a coupled decoder's drafts, by their distance from the frontier? It limits the passes it can save.

    python benchmarks/draft_quality.py [--images 32] 'sjd_coupled: {window: 32, warm: true}' 'mtj: {branches: 96}'

A pass leaves a guess for each open slot of the window, the next pass's draft. The final tokens do not depend on the
guesses, so each guess can be compared with the final token: the share that is right, at 1, 2, ... places after the
last final token, over all passes but the first; and the tokens made final per pass.
"""

import torch
from common import encode_captions, make_sampling, make_spec, parse_flags

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.experiment.options import is_coupled

DEFAULT = ["sjd_coupled: {window: 32, warm: true}", "mtj", "mtj: {branches: 96, ranks: 6, depth: 12}"]
DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16)
FURTHEST = 64


def main() -> None:
    """Decode captions by each variant and print the share of right guesses by distance; exit if one is not coupled."""
    a = parse_flags(__doc__, DEFAULT, images=32)
    manifest, rows = encode_captions(a.images)
    for variant in a.variants:
        spec = make_spec("discrete", variant, 0, sampling=make_sampling(1.8))
        if not is_coupled("discrete", spec["method"], spec["options"]):
            raise SystemExit(f"{variant}: not coupled to plain sampling; its result depends on its drafts")
        loaded = loop.load("discrete", manifest, spec)
        noise = batch_noise(spec["seed"], rows["ids"].tolist())
        model, start, steps = loop.start_decoding("discrete", loaded, spec)(rows, noise)
        steps = list(steps)
        result = record(model, start, iter(steps))
        hits = torch.zeros(FURTHEST)
        guesses = torch.zeros(FURTHEST)
        for step in steps[1:]:
            slot = torch.arange(step.tokens.shape[1])
            positions = step.positions[:, None] + slot
            distance = slot - step.kept[:, None]
            is_guess = (distance >= 0) & (distance < FURTHEST) & (positions < model.length) & (step.kept > 0)[:, None]
            is_right = step.tokens == result.tokens.gather(1, positions.clamp(max=model.length - 1))
            guesses += torch.bincount(distance[is_guess], minlength=FURTHEST)
            hits += torch.bincount(distance[is_guess & is_right], minlength=FURTHEST)
        shares = "  ".join(f"{d}: {hits[d - 1] / guesses[d - 1]:.2f}" for d in DISTANCES if guesses[d - 1] > 0)
        per_pass = model.length / result.nfe.float().mean()
        print(f"{variant:45s} tokens a pass {per_pass:.2f}; right at {shares}", flush=True)


if __name__ == "__main__":
    main()
