"""The task of filling in, in the order that the prompt determines, and what a decoder needs of a model.

A *family* of models is one module here that declares FAMILY, and has `build(config)`, transformers' network of a saved
configuration, `plain(net, mask)` and `cached(weights, config, mask)`, which are `AnySubsetModel`s:

    FAMILY = {
        "files": parts of a model: the network, and the judge that scores texts,
        "also": parts that it may have: the network's tokenizer, where it lies in a folder of its own,
        "model_types": `model_type` in config.json, by part,
    }
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from parity.base.errors import ParityError


class Infilling(NamedTuple):
    """A batch of rows to fill in. Rows may have any number of positions up to N, and any of them known."""

    tokens: Tensor  # [B, N] int64: the known tokens, the model's mask elsewhere
    order: Tensor  # [B, N] int64: position of each rank; the prompt's come first
    begin: Tensor  # [B] m, the number of known positions
    end: Tensor  # [B] positions of the row; those behind it are not read


class AnySubsetModel(Protocol):
    """A network that gives the law of any position given any subset of the others."""

    vocab: int  # V, with the mask, which has probability 0 and never occurs in a finished text
    mask: int  # the token for "unknown"

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        """tokens, order [B, N], begin [B], ranks, seen [B, S] -> probabilities [B, S, V], in one pass.

        Law of the token of rank ranks[b, s], given those of ranks below seen[b, s]. The first `begin` ranks, the
        prompt, see one another; each later rank sees those before it. A draft has seen = n for all ranks, a joint
        density seen = ranks (Eq. 6). A rank may be asked for under several `seen`; slots with a rank of N or more have
        no meaning.
        """
        ...


def invert_order(order: Tensor) -> Tensor:
    """The rank [B, N] of each position, order [B, N] being the position of each rank."""
    B, N = order.shape
    return torch.empty_like(order).scatter_(1, order, torch.arange(N, device=order.device).expand(B, N))


def make_lattice(known: Tensor, end: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Order [B, N], begin [B], end [B] of known positions bool [B, N]: from left to right, then the others (Eq. 4)."""
    B, N = known.shape
    end = torch.full((B,), N, device=known.device) if end is None else end
    position = torch.arange(N, device=known.device).expand(B, N)
    inside = position < end[:, None]
    known = known & inside
    order = (position + N * ~known + N * ~inside).argsort(1)
    return order, known.sum(1), end


def write(values: Tensor, positions: Tensor, new: Tensor, where: Tensor) -> Tensor:
    """values [B, N] with new [B, W] at positions [B, W] `where` true."""
    spare = torch.cat([values, values[:, :1]], 1)  # the last column takes the others
    return spare.scatter_(1, torch.where(where, positions, values.shape[1]), new.to(values.dtype))[:, :-1]


def make_infilling(tokens: Tensor, known: Tensor, mask: int, vocab: int, end: Tensor | None = None) -> Infilling:
    """The task of filling in what is not `known` [B, N] of tokens [B, N].

    ParityError for a row of which nothing or everything is known, or for a known token that is no word.
    """
    order, begin, end = make_lattice(known, end)
    for row in range(len(tokens)):
        if int(begin[row]) == int(end[row]):
            raise ParityError(f"row {row}: no masked position among {int(end[row])}; there is nothing to fill in")
        if int(begin[row]) == 0:
            raise ParityError(f"row {row}: all {int(end[row])} positions are masked; allowed: at least one known token")
    bad = known & ((tokens < 0) | (tokens >= vocab) | (tokens == mask))
    if bad.any():
        row, position = bad.nonzero()[0].tolist()
        what = f"{int(tokens[row, position])}" + (" (the mask)" if int(tokens[row, position]) == mask else "")
        raise ParityError(
            f"row {row}, position {position}: known token {what}; allowed: 0 to {vocab - 1} without the mask {mask}"
        )
    return Infilling(torch.where(known, tokens, mask), order, begin, end)


class Ranks(NamedTuple):
    """k ranks of every row, all [B, k]."""

    rank: Tensor
    position: Tensor  # of each rank; past a row's end that of another
    open: Tensor  # bool: whether the row has this rank
    asked: Tensor  # what a model is asked for: the rank, or N where the row does not have it


def next_ranks(start: Infilling, first: Tensor, k: int) -> Ranks:
    """The k ranks from `first` [B] on."""
    N = start.order.shape[1]
    rank = first[:, None] + torch.arange(k, device=first.device)
    inside = rank < start.end[:, None]
    return Ranks(rank, start.order.gather(1, rank.clamp(max=N - 1)), inside, torch.where(inside, rank, N))
