"""Recipe of the embedded Harmon pair (draft and target): pictures of one large plain thing with their captions."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parity.embedded.classes import class_arrays
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.models.continuous.kl import LATENTS
from parity.models.discrete.text import PREFIX, VOCAB, token_ids
from parity.training.loop import fit, publish
from parity.training.mar import TESTED, UNCONDITIONAL, class_latents, latents_of, masked_loss

CONFIG = HarmonConfig(
    **{
        "classes": 1,
        "grid": 8,
        "width": 128,
        "encoder": 2,
        "decoder": 2,
        "heads": 4,
        "buffer": 8,
        "head_width": 160,
        "head_depth": 3,
    },
    **{"vocab": VOCAB, "hidden": 128, "intermediate": 384, "layers": 2, "attention_heads": 4, "key_value_heads": 2},
    without=tuple(token_ids([""], 1)[0][0].tolist()),
)
CONFIGS = {
    "harmon": CONFIG,
    "harmon-draft": replace(CONFIG, width=64, head_width=80, head_depth=2, hidden=64, intermediate=192),
}


def prompts(captions: list[str]) -> Tensor:
    """Token ids [B, PREFIX], -1 for padding."""
    ids, valid = token_ids(captions, PREFIX)
    return ids.masked_fill(valid == 0, -1)


def caption_latents(
    work: Path, kl_file: Path, first: int, count: int, test: bool, processes: int
) -> tuple[Tensor, Tensor]:
    """Tokens float32 [n, L, D] and prompts [n, PREFIX] of class-conditional Scenes."""
    tokens, _ = class_latents(work, kl_file, first, count, test, processes)
    return tokens, prompts(class_arrays(work, first, count, test, processes)[1])


def main(
    work: Path,
    kl_file: Path,
    out: Path,
    config: HarmonConfig,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train a network of `config`, write `out`, return the log: the diffusion loss on training and on held-out pictures."""
    tokens, texts = caption_latents(work, kl_file, 1_000_000, examples, False, processes)
    test_tokens, test_texts = caption_latents(work, kl_file, 3_000_000, TESTED, True, processes)
    torch.manual_seed(seed)
    net = HarmonNet(config)

    def loss(step):
        rng = np.random.default_rng([seed, step, 12])
        rows = torch.from_numpy(rng.integers(0, len(tokens), batch))
        dropped = torch.from_numpy(rng.random((batch, 1)) < UNCONDITIONAL)
        return masked_loss(net, tokens[rows], texts[rows].masked_fill(dropped, -1), rng), {}

    def held_out() -> float:
        return float(
            np.mean(
                [
                    masked_loss(net, test_tokens, test_texts, np.random.default_rng([seed, i, 13])).item()
                    for i in range(2)
                ]
            )
        )

    log = fit(
        net, loss, held_out, out, steps=steps, peak=peak, hidden=lambda name: "_blocks." in name or ".layers." in name
    )
    publish(net, out, asdict(config) | {LATENTS: latents_of(kl_file)})
    return log
