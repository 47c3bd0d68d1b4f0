"""How good are a coupled decoder's drafts, by their distance from the frontier? What limits the passes it can save.

python benchmarks/draft_quality.py [--images 32] 'sjd_coupled: {window: 32, warm: true}' 'mtj' 'mtj: {branches: 96, ranks: 6, depth: 12}'

A pass leaves a guess for each open slot of the window, the next pass's draft. Its result does not depend on the guesses, so each can be compared with the
token that was drawn in the end: the share that is right, at 1, 2, ... places behind the last final token, over all passes but the first; and the
tokens made final per pass.
"""

import argparse
import importlib
from pathlib import Path

import torch
import yaml

from parity.base.noise import batch_noise
from parity.decode.discrete import decode
from parity.experiment import config
from parity.experiment.config import ModelSpec
from parity.inputs.captions import encode
from parity.models import checkpoints
from parity.models.discrete.sampling import Sampled, Sampling

DEFAULT = ["sjd_coupled: {window: 32, warm: true}", "mtj", "mtj: {branches: 96, ranks: 6, depth: 12}"]
SHOWN = (1, 2, 3, 4, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", default=DEFAULT)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest = checkpoints.get("scenes", ModelSpec(), Path("results"))
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    embeddings, valid = encode(manifest, captions, "cpu")
    loaded = checkpoints.load(manifest)
    for text in a.variants:
        given = yaml.safe_load(text)
        method, options = next(iter(given.items())) if isinstance(given, dict) else (given, {})
        if not config.coupled(method, config.options(method, options)):
            raise SystemExit(
                f"{text}: not coupled to plain sampling; allowed: variants whose result does not depend on their drafts"
            )
        model = Sampled(loaded.decodable(embeddings, valid, True), Sampling(guidance=1.8))
        decoder = getattr(importlib.import_module(f"parity.decoders.{method}"), method)
        start = torch.zeros(len(captions), dtype=torch.int64)
        steps = list(decoder(model, start, noise=batch_noise(0, captions), **config.options(method, options)))
        done = decode(model, iter(steps), len(captions))
        right, seen = torch.zeros(64), torch.zeros(64)
        for step in steps[1:]:
            slot = torch.arange(step.tokens.shape[1])
            where, ahead = step.positions[:, None] + slot, slot - step.kept[:, None]
            guess = (ahead >= 0) & (ahead < 64) & (where < model.length) & (step.kept > 0)[:, None]
            same = step.tokens == done.tokens.gather(1, where.clamp(max=model.length - 1))
            seen += torch.bincount(ahead[guess], minlength=64)
            right += torch.bincount(ahead[guess & same], minlength=64)
        shares = "  ".join(f"{d}: {right[d - 1] / seen[d - 1]:.2f}" for d in SHOWN if seen[d - 1] > 0)
        print(f"{text:45s} tokens a pass {model.length / done.nfe.float().mean():.2f}; right at {shares}", flush=True)


if __name__ == "__main__":
    main()
