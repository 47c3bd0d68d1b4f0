"""The target alone: every token from the model's own distribution, one rank at a time or several at once.

Source: Li et al. 2024 (MAR), sec. 3.3 and 3.4; CSpD's Table 9 (tokens per step).
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import Pair, Start, make_path_noise
from parity_decoders.steps import Draw

CLAIM = "lossless"
EXACT_WITH = {"iterations": 0}  # otherwise tokens drawn in one iteration do not see each other
PLAIN = {"iterations": 0}  # with this option value it is plain decoding
EXACT_LAYER = {"iterations": 0}
SOURCE = "Li et al. 2024 (MAR)"


def count_known(iterations: int, schedule: str, length: int) -> list[int]:
    """List how many of `length` tokens are known after each iteration: by MAR's cosine schedule, at least one more each
    time (sec. 3.3), or by equal shares ("constant"). 0 iterations: one token each."""
    if iterations == 0:
        return list(range(1, length + 1))
    n_known = 0
    counts = []
    for step in range(1, iterations + 1):
        # As in the released code, the cosine is floored without rounding: cos(60 deg) may come out below a half.
        cosine = schedule == "cosine"
        n_masked = (
            length * math.cos(math.pi / 2 * step / iterations) if cosine else length * (1 - step / iterations) + 1e-9
        )
        masked = max(1, min(length - n_known - 1, math.floor(n_masked))) if step < iterations else 0
        n_known = min(length, length - masked)
        counts.append(n_known)
    return counts


def plan_iterations(start: Start, iterations: int, schedule: str) -> Iterator[Tensor]:
    """Yield the ranks [B, n] that each iteration draws, see `count_known`; those before its first one are known. Raises
    DecodingError for more iterations than an image has tokens."""
    B, L = start.order.shape
    if iterations > L:
        raise DecodingError(f"iterations {iterations}: allowed: at most the {L} tokens of an image")
    for n_known, n_next in pairwise([0, *count_known(iterations, schedule, L)]):
        if n_next > n_known:
            yield torch.arange(n_known, n_next, device=start.order.device).expand(B, -1)


@torch.inference_mode()
def mar(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    iterations: Annotated[int, Interval(ge=0, le=100_000), Counts("passes", most="length")] = 0,
    schedule: Literal["cosine", "constant"] = "cosine",
) -> Iterator[Draw]:
    """Draw one token at a time, or several in each iteration.

    iterations  evaluations of the target; 0 is one for each token: plain decoding, with which other methods are
                compared. Without such a variant they are compared with the first one, and the page says so
    schedule    tokens of an iteration: MAR's cosine schedule, or equal shares
    """
    target = models.target
    tokens = torch.zeros(*start.order.shape, target.dim, dtype=noise.dtype, device=start.order.device)
    for ranks in plan_iterations(start, iterations, schedule):
        condition = target.conditions(tokens, start.order, ranks, ranks[:, :1])
        path = make_path_noise(noise, "sample", ranks, target.steps, target.dim)
        drawn = target.distribution(condition, path).sample(path).unflatten(0, ranks.shape)
        tokens = write(tokens, start.order.gather(1, ranks), drawn)
        yield Draw(drawn, torch.full_like(ranks[:, 0], ranks.shape[1]))


def write(tokens: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """Write `new` [B, n, D] at grid positions [B, n] into a copy of tokens [B, L, D]."""
    return tokens.scatter(1, positions[..., None].expand(-1, -1, tokens.shape[-1]), new.to(tokens.dtype))
