"""How good are a coupled decoder's drafts, by their distance from the frontier? It limits the passes it can save.

    python benchmarks/draft_quality.py [--images 32] 'sjd_coupled: {window: 32, warm: true}' 'mtj: {branches: 96}'

A pass leaves a guess for each open slot of the window, the next pass's draft. Its result does not depend on the
guesses, so each can be compared with the token that was drawn in the end: the share that is right, at 1, 2, ... places
behind the last final token, over all passes but the first; and the tokens made final per pass.
"""

import torch
from common import asked, captioned, cell, guided

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.experiment.options import is_coupled

DEFAULT = ["sjd_coupled: {window: 32, warm: true}", "mtj", "mtj: {branches: 96, ranks: 6, depth: 12}"]
SHOWN = (1, 2, 3, 4, 6, 8, 12, 16)
FURTHEST = 64


def main() -> None:
    a = asked(__doc__, DEFAULT, images=32)
    manifest, rows = captioned(a.images)
    for variant in a.variants:
        spec = cell("discrete", variant, 0, sampling=guided(1.8))
        if not is_coupled("discrete", spec["method"], spec["options"]):
            raise SystemExit(f"{variant}: not coupled to plain sampling; its result depends on its drafts")
        loaded = loop.load("discrete", manifest, spec)
        noise = batch_noise(spec["seed"], rows["ids"].tolist())
        model, start, steps = loop.start_decoding("discrete", loaded, spec)(rows, noise)
        steps = list(steps)
        done = record(model, start, iter(steps))
        right, seen = torch.zeros(FURTHEST), torch.zeros(FURTHEST)
        for step in steps[1:]:
            slot = torch.arange(step.tokens.shape[1])
            where, ahead = step.positions[:, None] + slot, slot - step.kept[:, None]
            guess = (ahead >= 0) & (ahead < FURTHEST) & (where < model.length) & (step.kept > 0)[:, None]
            same = step.tokens == done.tokens.gather(1, where.clamp(max=model.length - 1))
            seen += torch.bincount(ahead[guess], minlength=FURTHEST)
            right += torch.bincount(ahead[guess & same], minlength=FURTHEST)
        shares = "  ".join(f"{d}: {right[d - 1] / seen[d - 1]:.2f}" for d in SHOWN if seen[d - 1] > 0)
        per_pass = model.length / done.nfe.float().mean()
        print(f"{variant:45s} tokens a pass {per_pass:.2f}; right at {shares}", flush=True)


if __name__ == "__main__":
    main()
