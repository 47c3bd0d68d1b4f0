"""The task of filling in, in the order that the prompt determines, and what a decoder needs of a model."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError


class Infilling(NamedTuple):
    """A batch of rows to fill in. Rows may have any number of positions up to N, and any of them known."""

    tokens: Tensor  # [B, N] int64: the known tokens, the model's mask elsewhere
    order: Tensor  # [B, N] int64: position of each rank; the prompt's come first
    begin: Tensor  # [B] m, the number of known positions
    end: Tensor  # [B] number of positions of the row; those from it on are not read


class AnySubsetModel(Protocol):
    """A network that gives the distribution of any position given any subset of the others."""

    vocab: int  # V, with the mask, which has probability 0 and never occurs in a finished text
    mask: int  # the token for "unknown"

    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V] in one pass: tokens, order [B, N], n_prompt [B], ranks, n_seen [B, S].

        The distribution of the token of rank ranks[b, s] is conditioned on the ranks below n_seen[b, s]. The first
        `n_prompt` ranks, the prompt, see one another; each later rank sees those before it. A draft has n_seen = n for
        all ranks, a joint density n_seen = ranks (Eq. 6). A rank may occur with several `n_seen`; slots with a rank of
        N or more have no meaning.
        """
        ...


def invert_order(order: Tensor) -> Tensor:
    """Compute the rank [B, N] of each position from the position of each rank, order [B, N]."""
    B, N = order.shape
    return torch.empty_like(order).scatter_(1, order, torch.arange(N, device=order.device).expand(B, N))


def make_lattice(is_known: Tensor, end: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Order positions by `is_known` [B, N] bool: known ones from left to right, then the others (Eq. 4), then those
    after the row's `end` [B] (None: N). Returns order [B, N], the number of known ones [B], and end [B]."""
    B, N = is_known.shape
    end = torch.full((B,), N, device=is_known.device) if end is None else end
    position = torch.arange(N, device=is_known.device).expand(B, N)
    in_row = position < end[:, None]
    is_known = is_known & in_row
    order = (position + N * ~is_known + N * ~in_row).argsort(1)
    return order, is_known.sum(1), end


def write(values: Tensor, positions: Tensor, new: Tensor, selected: Tensor) -> Tensor:
    """Return a copy of values [B, N] with new [B, W] written at positions [B, W] where `selected` [B, W] bool."""
    spare = torch.cat([values, values[:, :1]], 1)  # the last column takes what is not selected
    return spare.scatter_(1, torch.where(selected, positions, values.shape[1]), new.to(values.dtype))[:, :-1]


def make_infilling(tokens: Tensor, is_known: Tensor, mask: int, vocab: int, end: Tensor | None = None) -> Infilling:
    """Make the task of filling in the unknown tokens of rows [B, N], of which is_known [B, N] bool. end [B]: positions
    of a row.

    Raises DecodingError for a row in which nothing or everything is known, or for a known token outside the vocabulary.
    """
    order, n_known, end = make_lattice(is_known, end)
    for row in range(len(tokens)):
        if int(n_known[row]) == int(end[row]):
            raise DecodingError(f"row {row}: no masked position among {int(end[row])}; there is nothing to fill in")
        if int(n_known[row]) == 0:
            raise DecodingError(
                f"row {row}: all {int(end[row])} positions are masked; allowed: at least one known token"
            )
    bad = is_known & ((tokens < 0) | (tokens >= vocab) | (tokens == mask))
    if bad.any():
        row, position = bad.nonzero()[0].tolist()
        problem = f"{int(tokens[row, position])}" + (" (the mask)" if int(tokens[row, position]) == mask else "")
        raise DecodingError(
            f"row {row}, position {position}: known token {problem}; allowed: 0 to {vocab - 1} without the mask {mask}"
        )
    return Infilling(torch.where(is_known, tokens, mask), order, n_known, end)


class Ranks(NamedTuple):
    """k ranks of every row, all [B, k]."""

    rank: Tensor
    position: Tensor  # position of each rank; that of another rank past a row's end
    open: Tensor  # bool: whether the row has this rank
    asked: Tensor  # what a model is asked for: the rank, or N where the row does not have it


def next_ranks(start: Infilling, first: Tensor, k: int) -> Ranks:
    """List k ranks of each row, from `first` [B] on, with their positions and whether the row has them."""
    N = start.order.shape[1]
    rank = first[:, None] + torch.arange(k, device=first.device)
    in_row = rank < start.end[:, None]
    return Ranks(rank, start.order.gather(1, rank.clamp(max=N - 1)), in_row, torch.where(in_row, rank, N))
