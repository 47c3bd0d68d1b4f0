"""Hidden-state models of any length: the law of the next token follows from the belief about a hidden state.

A hidden Markov model (Rabiner 1989, sec. III) whose prefix is summed up by the forward algorithm: belief i is the law
of the state at position i given the tokens before it. Chains of any order, counters and grammars are such models too,
with states that the tokens name. So the law of every conditional, and of any two tokens, is exact at any length.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from parity.models.discrete.tabular import TabularDrafter, companion


class Law(NamedTuple):
    """begin [H] of the first state; step [H, H] from one state to the next; emit [H, V] of a state's token."""

    begin: Tensor
    step: Tensor
    emit: Tensor


def informed(law: Law, told: Tensor, belief: Tensor, read: Tensor) -> Tensor:
    """Beliefs [B, H] one position on, once `read` [B] was: rows of told [V + 1, H], what each token says of the states,
    the last where nothing was read. A token that is impossible there says nothing either."""
    seen = told[read] * belief
    total = seen.sum(1, keepdim=True)
    if not bool((total > 0).all()):
        seen, total = torch.where(total > 0, seen, belief), torch.where(total > 0, total, 1)
    return (seen / total) @ law.step


class HiddenMarkov:
    """A token model (see `TokenModel`) of `rows` sequences under a hidden law. A hole is summed over, as nothing was
    read there; forced tokens tell nothing of the state. `drafts` is the law of the draft model."""

    draft = cached_property(companion)
    drafter = cached_property(lambda self: TabularDrafter(self.draft))

    def __init__(self, law: Law, length: int, rows: int, width: int, forced: Tensor, drafts: Law | None = None):
        self.law, self.drafts, self.length, self.width, self.forced = law, drafts, length, width, forced
        self.vocab = law.emit.shape[1]
        line = 0.3 * torch.arange(1, self.vocab + 1, dtype=law.emit.dtype)[:, None]  # neighbours look alike
        self.codebook = self.raw_codebook = self.embeddings = line
        self.told = torch.cat([law.emit.T, law.emit.new_ones(1, law.emit.shape[0])])
        self.memory = torch.full((length + 1, rows), self.vocab)  # what was fed, position -1 first; V at a hole
        self.belief = law.begin.repeat(length + 1, rows, 1)  # [L + 1, B, H]
        self.rows = torch.arange(rows)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See TokenModel."""
        where = positions + 1
        self.memory[where, self.rows[:, None]] = tokens
        first, last = max(0, int(positions.min())), int(positions.max()) + 1
        for i in range(first, last):
            read = self.memory[i + 1] if self.forced[i] < 0 else torch.full_like(self.rows, self.vocab)
            self.belief[i + 1] = informed(self.law, self.told, self.belief[i], read)
        laws = self.belief[first : last + 1] @ self.law.emit  # [positions, B, V]
        return laws[where - first, self.rows[:, None]].log()

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """See TokenModel. Nodes past the end have the law of the end."""
        after = self.belief.new_zeros(tokens.shape[1], *self.belief.shape[1:])
        silent = torch.cat([self.forced >= 0, torch.ones(1, dtype=torch.bool)])  # the end, too
        for s in range(tokens.shape[1]):
            at, parent = positions[:, s].clamp(max=self.length), parents[:, s]
            before = self.belief[at.clamp(min=0), self.rows]
            if s:
                before = torch.where((parent >= 0)[:, None], after[parent.clamp(min=0), self.rows], before)
            read = torch.where(silent[at], self.vocab, tokens[:, s])
            behind = informed(self.law, self.told, before, read)
            after[s] = torch.where((at >= 0)[:, None], behind, before)
        self.nodes = (tokens, positions, after)
        return (after.transpose(0, 1) @ self.law.emit).log()

    def keep(self, nodes: Tensor) -> None:
        tokens, positions, after = self.nodes
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        inside = positions[row, node] < self.length
        row, node = row[inside], node[inside]
        where = positions[row, node] + 1
        self.memory[where, row], self.belief[where, row] = tokens[row, node], after[node, row]


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
