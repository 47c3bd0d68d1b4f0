"""Plain autoregressive sampling: one token per pass, with the same cache, kernels and law as every other method."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import race
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
AHEAD = 16  # positions whose races are drawn at once: where they are few, calls are what they cost
PLAIN: dict = {}  # this is plain decoding, whatever its options
SOURCE = "the definition of the target law"


@torch.inference_mode()
def ar(model: TokenModel, start: Tensor, *, noise: Noise) -> Iterator[Step]:
    """Draw x_n ~ p(x | x_<n) for n = 0..L-1. Tokens that the grammar forces are filled in, at no pass of their own."""
    B, L, forced = len(start), model.length, model.forced.tolist()

    def forced_run(n: int) -> Tensor:
        """The forced tokens that stand at n, n+1, ..., [B, 0 or more]."""
        stop = next((i for i in range(n, L) if forced[i] < 0), L)
        return model.forced[n:stop].expand(B, -1)

    end = 0  # of the positions whose races are drawn
    feed = torch.cat([start[:, None], forced_run(0)], 1)  # tokens that the model has not seen
    n = feed.shape[1] - 1
    while n < L:
        positions = torch.arange(n - feed.shape[1], n, device=start.device).expand(B, -1)
        p = model.logits(feed, positions)[:, -1].softmax(-1)
        at = positions[:, -1] + 1
        if n >= end:
            end = min(n + AHEAD, L)
            races = noise.exponential("sample", torch.arange(n, end, device=start.device)[None], model.vocab)
        token = race(p, races[:, n - end])
        feed = torch.cat([token[:, None], forced_run(n + 1)], 1)
        yield Step(feed, torch.full_like(start, feed.shape[1]), at)
        n += feed.shape[1]
