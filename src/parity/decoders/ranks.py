"""Where an any-subset decoder's loop works: some ranks of every row's order, rows of a batch at different ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from parity.models.anysubset.protocol import Infilling


class Ranks(NamedTuple):
    """k ranks of every row, all [B, k]."""

    rank: Tensor
    position: Tensor  # of each rank; past a row's end that of another
    open: Tensor  # bool: the rank is the row's
    asked: Tensor  # what a model is asked for: the rank, or N where it is not the row's


def ranks(start: Infilling, first: Tensor, k: int) -> Ranks:
    """The k ranks from `first` [B] on."""
    N = start.order.shape[1]
    rank = first[:, None] + torch.arange(k, device=first.device)
    inside = rank < start.end[:, None]
    return Ranks(rank, start.order.gather(1, rank.clamp(max=N - 1)), inside, torch.where(inside, rank, N))
