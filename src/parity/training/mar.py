"""Recipe of the embedded MAR pair (draft and target), on class-conditional Scenes: pictures of one large plain thing."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from parity.embedded.classes import CLASSES, class_arrays
from parity.models.continuous import diffusion
from parity.models.continuous.kl import LATENTS
from parity.models.continuous.load import load_kl
from parity.models.continuous.mar import MARConfig, MARNet
from parity.training.loop import fit, publish, short_bf16, to_pictures

if TYPE_CHECKING:
    from parity.models.continuous.harmon import HarmonNet

CONFIG = MARConfig(
    classes=len(CLASSES), grid=8, width=160, encoder=3, decoder=3, heads=5, buffer=8, head_width=192, head_depth=3
)
CONFIGS = {
    "mar": CONFIG,
    "mar-draft": replace(CONFIG, width=80, heads=5, encoder=3, decoder=3, head_width=96, head_depth=2),
}
TESTED = 500  # held-out pictures
UNCONDITIONAL = 0.1  # share of labels dropped, for guidance
REPEATS = 2  # noise levels a token is trained at in one step (diffusion_batch_mul, 4 in the published recipe)


def latents_of(kl_file: Path) -> str:
    """What names an autoencoder: a draft must draw its target's latents."""
    return hashlib.sha256(kl_file.read_bytes()).hexdigest()[:16]


def class_latents(
    work: Path, kl_file: Path, first: int, count: int, test: bool, processes: int
) -> tuple[Tensor, Tensor]:
    """Tokens float32 [n, L, D] and classes [n] of class-conditional Scenes; kept in `work`."""
    labels, _, pixels = class_arrays(work, first, count, test, processes)
    file = work / f"latents-{first}-{count}-{'test' if test else 'train'}.npy"
    if not file.exists():
        kl = load_kl(kl_file)
        with torch.inference_mode():
            tokens = torch.cat([kl.encode(to_pictures(pixels[i : i + 64])) for i in range(0, count, 64)])
        part = file.with_suffix(".part")
        with part.open("wb") as stream:
            np.save(stream, tokens.numpy())
        part.replace(file)
    return torch.from_numpy(np.load(file)), torch.from_numpy(labels)


def mask_counts(rng: np.random.Generator, n: int, length: int) -> np.ndarray:
    """Masked tokens of n rows: the share is normal(1, 0.25) cut to [0.7, 1] (MAR, sec. 4.2)."""
    share = np.empty(n)
    for i in range(n):
        while not 0.7 <= (s := rng.normal(1.0, 0.25)) <= 1.0:
            pass
        share[i] = s
    return np.ceil(share * length).astype(int).clip(max=length)


def masked_loss(net: "MARNet | HarmonNet", tokens: Tensor, given: Tensor, rng: np.random.Generator) -> Tensor:
    """The diffusion loss of tokens [n, L, D] of which a random part is masked, given labels or prompts: a scalar."""
    n, L = tokens.shape[:2]
    masked = torch.from_numpy(rng.random((n, L)).argsort(1).argsort(1) < mask_counts(rng, n, L)[:, None])
    with short_bf16():
        z, x = net(tokens, ~masked, given)[masked].repeat(REPEATS, 1), tokens[masked].repeat(REPEATS, 1)
        t = torch.from_numpy(rng.integers(0, diffusion.TRAINED, len(x)))
        return diffusion.loss(
            net.diffloss.net, x, z, t, torch.from_numpy(rng.standard_normal(x.shape, np.float32))
        ).mean()


def main(
    work: Path,
    kl_file: Path,
    out: Path,
    config: MARConfig,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train a network of `config`, write `out`, return the log: the diffusion loss on training and on held-out pictures."""
    tokens, labels = class_latents(work, kl_file, 1_000_000, examples, False, processes)
    test_tokens, test_labels = class_latents(work, kl_file, 3_000_000, TESTED, True, processes)
    torch.manual_seed(seed)
    net = MARNet(config)

    def loss(step):
        rng = np.random.default_rng([seed, step, 7])
        rows = torch.from_numpy(rng.integers(0, len(tokens), batch))
        dropped = torch.from_numpy(rng.random(batch) < UNCONDITIONAL)
        return masked_loss(net, tokens[rows], labels[rows].masked_fill(dropped, -1), rng), {}

    def held_out() -> float:
        return float(
            np.mean(
                [
                    masked_loss(net, test_tokens, test_labels, np.random.default_rng([seed, i, 8])).item()
                    for i in range(2)
                ]
            )
        )

    log = fit(net, loss, held_out, out, steps=steps, peak=peak, hidden=lambda name: "_blocks." in name)
    publish(net, out, asdict(config) | {LATENTS: latents_of(kl_file)})
    return log
