"""What the recipes of continuous models share: batches of latents with what they are of, and a held-out loss."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parity.base.weights import sha256
from parity.models.continuous import diffusion
from parity.models.continuous.kl import LATENTS
from parity.training.data import class_latents
from parity.training.loop import short_bf16
from parity.training.recipe import UNCONDITIONAL, Job, Recipe

REPEATS = 2  # noise levels a token is trained at in one step (diffusion_batch_mul, 4 in the published recipe)
Data = Callable[
    [Job, bool], tuple[Tensor, Tensor]
]  # of training or held out: tokens [n, L, D], what they are of [n, ...]
Value = Callable[[Any, Tensor, Tensor, np.random.Generator], Tensor]  # net, tokens, what they are of, rng: a scalar


def latents_recipe(
    job: Job,
    build: Callable[[Any], nn.Module],
    config: Any,
    value: Value,
    *,
    stream: int,
    hidden: str,
    tested: tuple[tuple[int, ...], ...],
    data: Data = class_latents,
    unconditional: float = UNCONDITIONAL,
) -> Recipe:
    """The recipe of a network of `config` over the latents of `kl`.

    Its header names the latents, for a draft must draw its target's. `tested`: streams of the draws whose mean is the
    held-out figure.
    """
    (tokens, given), test = data(job, False), data(job, True)
    torch.manual_seed(job.seed)
    net = build(config)

    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch))
        conditions = given[rows]
        if unconditional:
            dropped = torch.from_numpy(rng.random(job.batch) < unconditional)
            conditions = conditions.masked_fill(dropped.view(-1, *[1] * (conditions.ndim - 1)), -1)
        return value(net, tokens[rows], conditions, rng), {}

    def held_out():
        draws = (np.random.default_rng([job.seed, *of]) for of in tested)
        return float(np.mean([value(net, *test, rng).item() for rng in draws]))

    header = asdict(config) | {LATENTS: sha256(job.weights("kl"))[:16]}
    streams = (stream,)
    return Recipe(net, loss, lambda: ({}, header), streams, peak=2e-3, hidden=hidden, held_out=held_out)


def mask_counts(rng: np.random.Generator, n: int, length: int) -> np.ndarray:
    """Masked tokens of n rows: the share is normal(1, 0.25) cut to [0.7, 1] (MAR, sec. 4.2)."""
    share = np.empty(n)
    for i in range(n):
        while not 0.7 <= (s := rng.normal(1.0, 0.25)) <= 1.0:
            pass
        share[i] = s
    return np.ceil(share * length).astype(int).clip(max=length)


def masked_loss(net: Any, tokens: Tensor, given: Tensor, rng: np.random.Generator) -> Tensor:
    """The diffusion loss of tokens [n, L, D] of which a random part is masked, given labels or prompts: a scalar."""
    n, L = tokens.shape[:2]
    masked = torch.from_numpy(rng.random((n, L)).argsort(1).argsort(1) < mask_counts(rng, n, L)[:, None])
    with short_bf16():
        z, x = net(tokens, ~masked, given)[masked].repeat(REPEATS, 1), tokens[masked].repeat(REPEATS, 1)
        t = torch.from_numpy(rng.integers(0, diffusion.TRAINED, len(x)))
        noise = torch.from_numpy(rng.standard_normal(x.shape, np.float32))
        return diffusion.loss(net.diffloss.net, x, z, t, noise).mean()
