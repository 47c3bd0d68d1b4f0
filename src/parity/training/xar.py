"""Recipe of the embedded xAR pair (draft and target): cells of one token, on the classes and latents of the MAR pair."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from parity.models.continuous import xar
from parity.models.continuous.kl import LATENTS
from parity.models.continuous.xar import XARConfig, XARNet
from parity.training.loop import fit, publish, short_bf16
from parity.training.mar import CLASSES, TESTED, UNCONDITIONAL, class_latents, latents_of

CONFIG = XARConfig(classes=len(CLASSES), grid=8, cell=1, width=128, encoder=2, decoder=2, heads=4)
CONFIGS = {"xar": CONFIG, "xar-draft": replace(CONFIG, width=64)}


def main(
    work: Path,
    kl_file: Path,
    out: Path,
    config: XARConfig,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train a network of `config`, write `out`, return the log: the velocity's squared error on training and on held-out pictures."""
    tokens, labels = class_latents(work, kl_file, 1_000_000, examples, False, processes)
    test_tokens, test_labels = class_latents(work, kl_file, 3_000_000, TESTED, True, processes)
    cells, test_cells = xar.fold(tokens, config.cell), xar.fold(test_tokens, config.cell)
    torch.manual_seed(seed)
    net = XARNet(config)

    def value(cells, labels, rng):
        t = torch.from_numpy(
            1 / (1 + np.exp(-rng.standard_normal(cells.shape[:2], np.float32)))
        )  # logit-normal, one for each cell
        noise = torch.from_numpy(rng.standard_normal(cells.shape, np.float32))
        with short_bf16():
            return xar.loss(net, cells, labels, t, noise).mean()

    def loss(step):
        rng = np.random.default_rng([seed, step, 10])
        rows = torch.from_numpy(rng.integers(0, len(cells), batch))
        dropped = torch.from_numpy(rng.random(batch) < UNCONDITIONAL)
        return value(cells[rows], labels[rows].masked_fill(dropped, -1), rng), {}

    def held_out() -> float:
        return float(
            np.mean([value(test_cells, test_labels, np.random.default_rng([seed, i, 11])).item() for i in range(2)])
        )

    log = fit(net, loss, held_out, out, steps=steps, peak=peak, hidden=lambda name: "_blocks." in name)
    publish(net, out, asdict(config) | {LATENTS: latents_of(kl_file)})
    return log
