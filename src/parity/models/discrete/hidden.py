"""Models of any length: the law of the next token follows from a state that every token carries on.

A hidden Markov model (Rabiner 1989, sec. III), whose state is the belief of the forward algorithm, the law of the
hidden state given the tokens before it: chains of any order, counters and grammars are such models too. And a table
read through a rolling hash of all tokens before. So the law of every conditional is exact at any length.
"""

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parity.models.discrete.tabular import TabularDrafter, companion

BASE, PRIME = 31, 65_537
NOTHING = -1  # in place of a token: nothing was read there


class Recurrent:
    """A token model (see `TokenModel`) of `rows` sequences; `drafts`: the draft model's law. A hole is passed over."""

    draft = cached_property(companion)
    drafter = cached_property(lambda self: TabularDrafter(self.draft))

    def __init__(
        self, begin: Tensor, codes: Tensor, length: int, rows: int, width: int, forced: Tensor, drafts: Any = None
    ):
        """begin [..]: the state before any token; codes [V, D]: tokens that are near look alike."""
        self.drafts, self.length, self.width, self.forced, self.vocab = drafts, length, width, forced, len(codes)
        self.codebook = self.raw_codebook = self.embeddings = codes
        self.memory = torch.full((length + 1, rows), NOTHING)  # what was fed, position -1 first
        self.states = begin.repeat(length + 1, rows, *[1] * begin.ndim)  # [L + 1, B, ..]
        self.silent = torch.zeros(length + 1, dtype=torch.bool)  # positions whose tokens say nothing
        self.rows = torch.arange(rows)
        self.reached = 0  # states up to here are of what was fed

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """States [B, ..] one token on."""
        raise NotImplementedError

    def laws(self, states: Tensor) -> Tensor:
        """Logits [.., V] of the token that follows states."""
        raise NotImplementedError

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See TokenModel."""
        where = positions + 1
        self.memory[where, self.rows[:, None]] = tokens
        first, last = max(0, min(int(positions.min()), self.reached)), int(positions.max()) + 1
        self.reached = last
        for i in range(first, last):
            token = torch.full_like(self.rows, NOTHING) if self.silent[i] else self.memory[i + 1]
            self.states[i + 1] = self.read(self.states[i], token)
        return self.laws(self.states[where, self.rows[:, None]])

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel."""
        after = self.states.new_zeros(tokens.shape[1], *self.states.shape[1:])
        over = lambda mask: mask.view(-1, *[1] * (self.states.ndim - 2))  # noqa: E731
        for s in range(tokens.shape[1]):
            at, parent = positions[:, s].clamp(0, self.length), parents[:, s]
            before = self.states[at, self.rows]
            if s:
                before = torch.where(over(parent >= 0), after[parent.clamp(min=0), self.rows], before)
            behind = self.read(before, torch.where(self.silent[at], NOTHING, tokens[:, s]))
            # what is fed at -1 begins every sequence alike
            after[s] = torch.where(over(positions[:, s] >= 0), behind, before)
        self.nodes = tokens, positions, after
        return self.laws(after.transpose(0, 1))

    def keep(self, nodes: Tensor) -> None:
        """See TokenModel."""
        tokens, positions, after = self.nodes
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        inside = positions[row, node] < self.length
        row, node = row[inside], node[inside]
        where = positions[row, node] + 1
        self.memory[where, row], self.states[where, row] = tokens[row, node], after[node, row]


class Law(NamedTuple):
    """begin [H] of the first state; step [H, H] from one state to the next; emit [H, V] of a state's token."""

    begin: Tensor
    step: Tensor
    emit: Tensor


class HiddenMarkov(Recurrent):
    """Under a hidden law. A hole is summed over; forced tokens, and a token that is impossible, say nothing."""

    def __init__(self, law: Law, length: int, rows: int, width: int, forced: Tensor, drafts: Law | None = None):
        line = 0.3 * torch.arange(1, law.emit.shape[1] + 1, dtype=law.emit.dtype)[:, None]
        super().__init__(law.begin, line, length, rows, width, forced, drafts)
        self.law = law
        self.silent = torch.cat([forced >= 0, torch.ones(1, dtype=torch.bool)])  # the end, too
        # [V + 1, H] what each token says of the states, the last where nothing was read
        self.evidence = torch.cat([law.emit.T, law.emit.new_ones(1, law.emit.shape[0])])

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        belief = self.evidence[tokens] * states
        total = belief.sum(1, keepdim=True)
        if not bool((total > 0).all()):
            belief, total = torch.where(total > 0, belief, states), torch.where(total > 0, total, 1)
        return (belief / total) @ self.law.step

    def laws(self, states: Tensor) -> Tensor:
        return (states @ self.law.emit).log()


def chain(table: Tensor) -> Law:
    """A Markov chain of tokens: table [V, V] of the next token after each, or [V, V, V] after each two. It begins
    uniformly."""
    V, order = table.shape[-1], table.ndim - 1
    states = torch.arange(V**order)
    step = table.new_zeros(len(states), V, V**order)
    step[states[:, None], torch.arange(V), (states[:, None] * V + torch.arange(V)) % V**order] = table.reshape(-1, V)
    emit = torch.nn.functional.one_hot(states % V, V).to(table.dtype)
    return Law(table.new_full((V**order,), V**-order), step.sum(1), emit)


def counter(table: Tensor) -> Law:
    """Tokens that are added up modulo M, and the next one's law table [M, V] by what they come to: every token matters
    to all that follow."""
    M, V = table.shape
    step = table.new_zeros(M, V, M, V)  # a state is the sum before its token, and the token
    for s in range(M):
        for v in range(V):
            step[s, v, (s + v) % M] = table[(s + v) % M]
    begin = torch.cat([table[0], table.new_zeros((M - 1) * V)])
    return Law(begin, step.reshape(M * V, M * V), torch.eye(V, dtype=table.dtype).repeat(M, 1))


class HashedTable(Recurrent):
    """The law is the row of table [K, V], logits, that a polynomial hash of the prefix names (Karp & Rabin 1987)."""

    def __init__(self, table: Tensor, length: int, rows: int, width: int, forced: Tensor, drafts: Tensor | None = None):
        line = torch.arange(table.shape[1], dtype=table.dtype)[:, None] / table.shape[1]
        super().__init__(torch.tensor(1), line, length, rows, width, forced, drafts)
        self.table = table

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        return torch.where(tokens < 0, states, (BASE * states + tokens + 1) % PRIME)

    def laws(self, states: Tensor) -> Tensor:
        return self.table[states % len(self.table)]


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
        return torch.cat([half.logits(*inputs) for half, *inputs in parts])

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel."""
        parts = zip(self.halves, tokens.chunk(2), positions.chunk(2), parents.chunk(2), strict=True)
        return torch.cat([half.tree(*inputs) for half, *inputs in parts])

    def keep(self, nodes: Tensor) -> None:
        """See TokenModel."""
        for half, some in zip(self.halves, nodes.chunk(2), strict=True):
            half.keep(some)
