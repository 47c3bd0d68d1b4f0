"""Recipe of the embedded Gaussian-mixture pair (draft and target): causal transformers on the classes and latents of the MAR pair."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from parity.models.continuous import gmm
from parity.models.continuous.gmm import GMMConfig, GMMNet
from parity.models.continuous.kl import LATENTS
from parity.training.loop import fit, publish, short_bf16
from parity.training.mar import CLASSES, TESTED, class_latents, latents_of

# Deviation of the noise on the latents. A mixture is exact about tokens that training never strays from; drawing one a little off leads astray.
NOISE = 0.15
CONFIG = GMMConfig(classes=len(CLASSES), grid=8, dim=16, width=128, blocks=4, heads=4, components=16)
CONFIGS = {"gmm": CONFIG, "gmm-draft": replace(CONFIG, width=64, blocks=3, heads=4)}


def main(
    work: Path,
    kl_file: Path,
    out: Path,
    config: GMMConfig,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train a network of `config`, write `out`, return the log: nats per number on training and on held-out pictures."""
    tokens, labels = class_latents(work, kl_file, 1_000_000, examples, False, processes)
    test_tokens, test_labels = class_latents(work, kl_file, 3_000_000, TESTED, True, processes)
    torch.manual_seed(seed)
    net = GMMNet(config)

    def value(tokens, labels, rng):
        with short_bf16():
            return gmm.loss(
                net, tokens + NOISE * torch.from_numpy(rng.standard_normal(tokens.shape, np.float32)), labels
            )

    def loss(step):
        rng = np.random.default_rng([seed, step, 9])
        rows = torch.from_numpy(rng.integers(0, len(tokens), batch))
        return value(tokens[rows], labels[rows], rng), {}

    def held_out() -> float:
        return value(test_tokens, test_labels, np.random.default_rng([seed, 14])).item()

    log = fit(net, loss, held_out, out, steps=steps, peak=peak, hidden=lambda name: ".blocks." in name)
    publish(net, out, asdict(config) | {LATENTS: latents_of(kl_file)})
    return log
