"""Models of any length beside the hidden ones: tables read through a rolling hash of all tokens before, and pairs of
models of which one knows the prompt."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from parity.models.discrete.tabular import TabularDrafter, companion

BASE, PRIME = 31, 65_537


class HashedTable:
    """A token model (see `TokenModel`) of `rows` sequences: the law is the row of table [K, V], logits, that a
    polynomial hash of the prefix names (Karp & Rabin 1987). A hole is passed over. `drafts` is the draft model's table.
    """

    draft = cached_property(companion)
    drafter = cached_property(lambda self: TabularDrafter(self.draft))

    def __init__(self, table: Tensor, length: int, rows: int, width: int, forced: Tensor, drafts: Tensor | None = None):
        self.table, self.drafts, self.length, self.width, self.forced = table, drafts, length, width, forced
        self.vocab = table.shape[1]
        line = torch.arange(self.vocab, dtype=table.dtype)[:, None] / self.vocab
        self.codebook = self.raw_codebook = self.embeddings = line
        self.memory = torch.full((length + 1, rows), -1)  # what was fed, position -1 first; -1 at a hole
        self.state = torch.ones(length + 1, rows, dtype=torch.int64)
        self.rows = torch.arange(rows)
        self.reached = 0  # states up to here are of what was fed

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Hashes one token on."""
        return torch.where(tokens < 0, states, (BASE * states + tokens + 1) % PRIME)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See TokenModel."""
        where = positions + 1
        self.memory[where, self.rows[:, None]] = tokens
        first, last = max(0, min(int(positions.min()), self.reached)), int(positions.max()) + 1
        self.reached = last
        for i in range(first, last):
            self.state[i + 1] = self.read(self.state[i], self.memory[i + 1])
        return self.table[self.state[where, self.rows[:, None]] % len(self.table)]

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel."""
        after = torch.ones_like(tokens)
        for s in range(tokens.shape[1]):
            at, parent = positions[:, s].clamp(0, self.length), parents[:, s]
            before = self.state[at, self.rows]
            if s:
                before = torch.where(parent >= 0, after[self.rows, parent.clamp(min=0)], before)
            # what is fed at -1 begins every sequence alike
            after[:, s] = torch.where(positions[:, s] < 0, self.state[0], self.read(before, tokens[:, s]))
        self.nodes = tokens, positions, after
        return self.table[after % len(self.table)]

    def keep(self, nodes: Tensor) -> None:
        """See TokenModel."""
        tokens, positions, after = self.nodes
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        inside = positions[row, node] < self.length
        row, node = row[inside], node[inside]
        where = positions[row, node] + 1
        self.memory[where, row], self.state[where, row] = tokens[row, node], after[row, node]


class Guided:
    """A model that knows the prompt and one that does not, as the two halves of one batch (see `Sampled`)."""

    def __init__(self, conditional: Any, unconditional: Any):
        self.halves = conditional, unconditional
        one = conditional
        self.vocab, self.length, self.width, self.forced = one.vocab, one.length, one.width, one.forced
        self.codebook, self.raw_codebook, self.embeddings = one.codebook, one.raw_codebook, one.embeddings

    @cached_property
    def draft(self) -> "Guided":
        return Guided(*(half.draft for half in self.halves))

    @cached_property
    def drafter(self) -> TabularDrafter:
        return TabularDrafter(self.draft)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See TokenModel."""
        parts = zip(self.halves, tokens.chunk(2), positions.chunk(2), strict=True)
        return torch.cat([half.logits(*given) for half, *given in parts])

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel."""
        parts = zip(self.halves, tokens.chunk(2), positions.chunk(2), parents.chunk(2), strict=True)
        return torch.cat([half.tree(*given) for half, *given in parts])

    def keep(self, nodes: Tensor) -> None:
        """See TokenModel."""
        for half, some in zip(self.halves, nodes.chunk(2), strict=True):
            half.keep(some)
