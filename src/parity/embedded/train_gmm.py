"""Recipe of the embedded Gaussian-mixture pair (draft and target): causal transformers on the classes and latents of the MAR pair."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from parity.embedded.train_mar import CLASSES, TESTED, class_latents, latents_of
from parity.embedded.training import publish, short_bf16, train
from parity.models import gmm
from parity.models.gmm import GMMConfig, GMMNet
from parity.models.kl import LATENTS

CONFIG = GMMConfig(classes=len(CLASSES), grid=8, dim=16, width=96, blocks=4, heads=6, components=16)
CONFIGS = {"gmm": CONFIG, "gmm-draft": replace(CONFIG, width=48, blocks=3, heads=3)}


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

    def value(tokens, labels):
        with short_bf16():
            return gmm.loss(net, tokens, labels)

    def loss(step):
        rows = torch.from_numpy(np.random.default_rng([seed, step, 9]).integers(0, len(tokens), batch))
        return value(tokens[rows], labels[rows]), {}

    log = []
    rows = train(
        {"net": net}, loss, steps=steps, peak=peak, checkpoint=out.with_suffix(".pt"), average=0.998, hidden=lambda name: ".blocks." in name
    )
    for row in rows:
        if row["step"] % 500 == 0:
            with torch.inference_mode():
                row["held_out"] = value(test_tokens, test_labels).item()
        print(row, flush=True)
        log.append(row)
    publish(net, out, asdict(config) | {LATENTS: latents_of(kl_file)})
    return log
