"""Models small enough to write down: every conditional is a row of a table, and the joint can be enumerated."""

import itertools
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from parity.models.discrete.protocol import TokenModel


def nodes(vocab: int, length: int) -> int:
    """Number of prefixes, the empty one included, of sequences of `length` tokens."""
    return sum(vocab**i for i in range(length))


class TabularModel:
    """Full-prefix dependent: table [N, V] of logits, or [2, N, V] for (conditional, unconditional), N = nodes(V, L).

    `rows` sequences are decoded at once (twice as many model rows if the table is a pair). `drafts`, of the same shape,
    is the draft model's table; None stands for a model that knows something of this one.
    """

    def __init__(
        self,
        table: Tensor,
        length: int,
        rows: int,
        width: int | None = None,
        forced: Tensor | None = None,
        drafts: Tensor | None = None,
    ):
        self.vocab, self.length, self.width = table.shape[-1], length, width or length
        device = table.device
        self.forced = torch.full((length,), -1, device=device) if forced is None else forced
        line = 0.3 * torch.arange(1, self.vocab + 1, dtype=table.dtype, device=device)[:, None]  # neighbours look alike
        self.codebook = self.raw_codebook = self.embeddings = line
        if table.shape[-2] != (wanted := nodes(self.vocab, length)):
            raise ValueError(f"table: {table.shape[-2]} prefixes, expected {wanted} for V={self.vocab}, L={length}")
        self.pair = table.ndim == 3
        self.table = table.flatten(0, -2)  # [N or 2 N, V]
        self.drafts = drafts
        rows = rows * (2 if self.pair else 1)
        # slot i holds the token fed at position i - 1
        self.memory = torch.zeros(rows, length + 1, dtype=torch.int64, device=device)
        shorter = [nodes(self.vocab, i) for i in range(length)]
        self.first, self.rows = torch.tensor(shorter, device=device), torch.arange(rows, device=device)[:, None]
        self.offset = self.rows // max(1, rows // 2) * nodes(self.vocab, length) if self.pair else 0

    @cached_property
    def draft(self) -> "TabularModel":
        """The draft model. Unless its table is given: these logits, flatter, and something of another prefix's. A token
        that is impossible here is improbable there, and another's may be likely."""
        shape = (2, -1, self.vocab) if self.pair else (-1, self.vocab)
        own = self.table.clamp(min=-20).view(shape)
        table = 0.7 * own + 0.3 * own.roll(1, -2) if self.drafts is None else self.drafts
        return TabularModel(table, self.length, len(self.memory) // (2 if self.pair else 1), self.width, self.forced)

    @cached_property
    def drafter(self) -> "TabularDrafter":
        return TabularDrafter(self.draft)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See TokenModel. Positions past the end of a row read an arbitrary row of the table, as a cache slot would."""
        self.memory[self.rows, positions + 1] = tokens
        return self._law(self.memory, positions)

    def _law(self, lines: Tensor, positions: Tensor) -> Tensor:
        """Logits [R, S, V] at positions + 1 [R, S], after what stands in lines [R or R * S, length + 1]."""
        code = torch.zeros_like(lines[:, : self.length])  # code[:, i] numbers the prefix of length i
        for i in range(1, self.length):
            code[:, i] = code[:, i - 1] * self.vocab + lines[:, i]
        length = (positions + 1).clamp(max=self.length - 1)
        wide = length if len(lines) == len(positions) else length.reshape(-1, 1)
        own = code.gather(1, wide).view_as(length)
        return self.table[self.first[length] + own + self.offset]

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel: every node has a line of its own, its ancestors' tokens over what is remembered."""
        S = tokens.shape[1]
        lines = torch.cat([self.memory, self.memory[:, :1]], 1).repeat_interleave(S, 0).view(len(tokens), S, -1)
        node = torch.arange(S, device=tokens.device).expand_as(parents)
        for _ in range(S):
            at = node.clamp(min=0)
            slot = positions.gather(1, at).clamp(max=self.length - 1) + 1
            where = torch.where(node >= 0, slot, self.length + 1)  # the last slot: of no use
            lines.scatter_(2, where[..., None], tokens.gather(1, at)[..., None])
            node = torch.where(node >= 0, parents.gather(1, at), -1)
            if node.device.type == "cpu" and not (node >= 0).any():
                break
        self.nodes = (tokens, positions.clamp(max=self.length - 1))
        return self._law(lines.flatten(0, 1), positions)

    def keep(self, nodes: Tensor) -> None:
        kept = torch.where(nodes < 0, nodes.amax(1, keepdim=True), nodes)  # in place of none the last again
        node, some = kept.clamp(min=0), kept >= 0
        where = torch.where(some, self.nodes[1].gather(1, node) + 1, 0)  # slot 0, the start, is never kept
        self.memory.scatter_(1, where, torch.where(some, self.nodes[0].gather(1, node), self.memory[:, :1]))

    def join(self, rows: Tensor, fresh: "TabularModel") -> None:
        """See TokenModel: every prompt is the same here, and what was fed is replaced."""


class TabularDrafter:
    """See Drafter: a model's draft in its place. Which feature stands beside a token makes no difference here."""

    def __init__(self, draft: TokenModel):
        self.draft = draft

    def join(self, rows: Tensor, fresh: "TabularDrafter") -> None:
        """See TokenModel."""

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        self.shown: list[tuple[Tensor, ...]] = []
        return self.draft.logits(tokens, positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        self.shown.append((tokens, positions, parents))
        return self.draft.tree(*(torch.cat(x, 1) for x in zip(*self.shown, strict=True)))[:, -tokens.shape[1] :]


def companion(model: Any) -> Any:
    """The draft model of a model that holds its law as `drafts`: one of the same kind, length, rows and grammar."""
    if model.drafts is None:
        raise ValueError("this model has no draft")
    return type(model)(model.drafts, model.length, len(model.rows), model.width, model.forced)


def joint(model: TokenModel, vocab: int, length: int) -> Tensor:
    """Exact law of the sequences, float64 [V^L] with the first token most significant; `model` must hold V^L rows."""
    sequences = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    inputs = torch.cat([torch.zeros(len(sequences), 1, dtype=torch.int64), sequences[:, :-1]], 1)
    law = model.logits(inputs, torch.arange(-1, length - 1).expand(len(sequences), -1)).double().softmax(-1)
    return law.gather(-1, sequences[..., None])[..., 0].prod(1)


def random_table(vocab: int, length: int, generator: torch.Generator, scale: float = 1.5, pair: bool = False) -> Tensor:
    """Gaussian logits, float64."""
    shape = (2, nodes(vocab, length), vocab) if pair else (nodes(vocab, length), vocab)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)
