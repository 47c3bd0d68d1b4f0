"""Models whose every distribution is known: a table of all prefixes, and distributions of any length that follow from a
state.

Every token carries the state on, and the state gives the distribution of the next one. It is the number of the prefix
(a table), the belief of the forward algorithm (a hidden Markov model, Rabiner 1989, sec. III: chains of any order,
counters and grammars are such models too), or a hash of all tokens before.
"""

from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from parity_decoders.protocols.discrete import FINAL, TokenModel, TreePass
from torch import Tensor

BASE, PRIME = 31, 65_537
NOTHING = -1  # this stands for a token that was not read


class StateModel:
    """A token model (see `TokenModel`) whose distribution follows from a state. A hole is passed over."""

    def __init__(
        self,
        initial_states: Tensor,
        codes: Tensor,
        length: int,
        rows: int,
        width: int | None,
        forced: Tensor | None,
        drafts: Any,
    ):
        """Set up the states. initial_states [R, ..]: of all rows before any token; codes [V, D]: tokens with near codes
        look alike; rows: sequences, half as many as R if a second half of the rows is unconditional; width: tokens in a
        row of the image, None for `length`; drafts: what the draft model is made of."""
        self.vocab = len(codes)
        self.length = length
        self.width = width or length
        self.count = rows
        self.drafts = drafts
        self.forced = torch.full((length,), -1, device=codes.device) if forced is None else forced
        self.codebook = self.raw_codebook = self.embeddings = codes
        R = len(initial_states)
        self.memory = torch.full((R, length + 1), NOTHING, device=codes.device)  # these tokens were fed, -1 first
        self.states = initial_states[:, None].repeat(1, length + 1, *[1] * (initial_states.ndim - 1))  # [R, L + 1, ..]
        self.silent = self.forced.new_zeros(length + 1, dtype=torch.bool)  # tokens at these positions change no belief
        self.rows = torch.arange(R, device=codes.device)[:, None]
        self.reached = self.rows.new_zeros(R)  # [R] the states before this position are those of the tokens fed

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Compute the states after states [n, S, ..] and one token each [n, S], NOTHING for none. If the second half of
        all rows is unconditional, that of these is too."""
        raise NotImplementedError

    def probs(self, states: Tensor) -> Tensor:
        """Compute logits [R, S, V] of the token that follows states [R, S, ..]."""
        raise NotImplementedError

    @cached_property
    def draft(self) -> Any:
        if self.drafts is None:
            raise ValueError("this model has no draft")
        make: Any = type(self)
        return make(self.drafts, self.length, self.count, self.width, self.forced)

    @cached_property
    def drafter(self) -> "TabularDrafter":
        return TabularDrafter(self.draft)

    @cached_property
    def heads(self) -> "TabularHeads":
        return TabularHeads(self.draft)

    def join(self, rows: Tensor, fresh: "StateModel") -> None:
        """Do nothing: every prompt is the same, and what was fed is replaced. See TokenModel."""

    def extend_states(self, first: Tensor, last: Tensor) -> None:
        """Compute and store the states after the stored tokens at positions first [R] to last - 1 [R]."""
        self.reached = last
        for i in range(int((last - first).max())):
            row = (first + i < last).nonzero()
            position = first[row] + i
            token = torch.where(self.silent[position], NOTHING, self.memory[row, position + 1])
            self.states[row, position + 1] = self.read(self.states[row, position], token)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Store tokens at positions [R, S], and compute logits [R, S, V] of the tokens after them."""
        self.memory[self.rows, positions + 1] = tokens
        self.extend_states(positions.amin(1).minimum(self.reached).clamp(min=0), positions.amax(1) + 1)
        return self.probs(self.states[self.rows, positions + 1])

    def extend_past_final(self, tokens: Tensor, positions: Tensor, final: Tensor) -> None:
        """Compute the states before the last of the `final` nodes [R, S] bool as if they and the first node were
        stored: tokens, positions [R, S]. States after the first node are computed anew in the next call."""
        memory = self.memory
        first = positions[:, 0].clamp(min=0)
        self.memory = memory.scatter(1, torch.where(final, positions, positions[:, :1]) + 1, tokens)
        self.memory[self.rows, positions[:, :1] + 1] = tokens[:, :1]
        self.extend_states(first, torch.where(final, positions, 0).amax(1).maximum(first))
        self.memory, self.reached = memory, first

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> TreePass:
        """Compute logits [R, S, V] after a tree's nodes: tokens, positions, parents [R, S], -1 for stored ones."""
        positions_stored = positions.clamp(0, self.length)
        self.extend_states(self.reached, self.reached.maximum(positions_stored[:, 0]))
        is_later = (parents == FINAL) & (positions > positions[:, :1])
        if bool(is_later.any()):
            self.extend_past_final(tokens, positions, is_later)
        fed = torch.where(self.silent[positions_stored], NOTHING, tokens)
        states = self.states[self.rows, positions_stored]
        # the token at -1 begins every sequence, so it changes no state
        level = (positions - positions[:, :1]).masked_fill(positions < 0, -1)
        for depth in level[level >= 0].unique():
            row, node = (x[:, None] for x in (level == depth).nonzero(as_tuple=True))
            parent = parents[row, node]
            parent_states = states[row, torch.where(parent < 0, node, parent)]
            states[row, node] = self.read(parent_states, fed[row, node])
        return TreePass(self.probs(states), tokens, positions, parents, state=states)

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store nodes [R, W] of a tree, -1 for none, at their positions, with the states after them."""
        tokens, positions, states = tree.tokens, tree.positions, tree.state
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        in_length = positions[row, node] < self.length
        row, node = row[in_length], node[in_length]
        slots = positions[row, node] + 1
        self.memory[row, slots], self.states[row, slots] = tokens[row, node], states[row, node]
        self.reached = self.reached.scatter_reduce(0, row, slots, "amax", include_self=False)


class TabularModel(StateModel):
    """Full-prefix dependent: table [N, V] of logits, or [2, N, V] for (conditional, unconditional), N =
    count_prefixes(V, L).

    Prefixes are numbered by length, then by their code. `rows` sequences are decoded at once (twice as many model rows
    if the table is a pair). `drafts`, of the same shape, is the draft model's table. Unless it is given: these logits,
    flatter, mixed with those of another prefix. A token that is impossible here is improbable there, and another's may
    be likely. A hole counts as token 0.
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
        """Set up the model of `rows` sequences. table: [N, V] logits after each of N prefixes, or [2, N, V]; drafts:
        the same of the draft model, None for a flatter table. Raises ValueError for another N."""
        V, N = table.shape[-1], count_prefixes(table.shape[-1], length)
        if table.shape[-2] != N:
            raise ValueError(f"table: {table.shape[-2]} prefixes, expected {N} for V={V}, L={length}")
        if drafts is None:
            clamped = table.clamp(min=-20)
            drafts = 0.7 * clamped + 0.3 * clamped.roll(1, -2)
        self.table = table.flatten(0, -2)  # [N or 2 N, V]
        self.prefixes = N
        self.pair = table.ndim == 3
        # the codes are on a line, so that tokens with neighbouring numbers look alike
        line = 0.3 * torch.arange(1, V + 1, dtype=table.dtype, device=table.device)[:, None]
        initial_states = torch.zeros(2 * rows if self.pair else rows, dtype=torch.int64, device=table.device)
        super().__init__(initial_states, line, length, rows, width, forced, drafts)
        self.offset = self.rows // max(rows, 1) * N

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        longer = self.vocab * states + tokens.clamp(min=0) + 1
        return torch.where(longer < self.prefixes, longer, states)  # a whole sequence is no prefix and has no number

    def probs(self, states: Tensor) -> Tensor:
        return self.table[states + self.offset]


class HiddenDistribution(NamedTuple):
    """begin [H] of the first state; step [H, H] from one state to the next; emit [H, V] of a state's token. With a
    dimension of two before each: the conditional distribution and the unconditional."""

    begin: Tensor
    step: Tensor
    emit: Tensor


def pair_distributions(conditional: HiddenDistribution, unconditional: HiddenDistribution) -> HiddenDistribution:
    """Stack a conditional and an unconditional distribution."""
    return HiddenDistribution(*(torch.stack(halves) for halves in zip(conditional, unconditional, strict=True)))


class HiddenMarkov(StateModel):
    """Under a hidden distribution. A hole is summed over; forced tokens, and a token that is impossible, say
    nothing."""

    def __init__(
        self,
        distribution: HiddenDistribution,
        length: int,
        rows: int,
        width: int,
        forced: Tensor,
        drafts: HiddenDistribution | None = None,
    ):
        """Set up the model of `rows` sequences; width: tokens in a row of the image; drafts: the draft model's
        distribution."""
        line = 0.3 * torch.arange(1, distribution.emit.shape[-1] + 1, dtype=distribution.emit.dtype)[:, None]
        initial, self.step, self.emit = (x if distribution.begin.ndim == 2 else x[None] for x in distribution)
        super().__init__(initial.repeat_interleave(rows, 0), line, length, rows, width, forced, drafts)
        self.silent = torch.cat([forced >= 0, torch.ones(1, dtype=torch.bool)])  # the end is silent too
        # [halves, V + 1, H] likelihood of each token by state; the last, 1, is for no token
        self.evidence = F.pad(self.emit.mT, (0, 0, 0, 1), value=1.0)

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Compute beliefs after states [R, S, H] and a token each [R, S]: Bayes' rule, then a step of the chain."""
        halves = len(self.evidence)
        evidence = self.evidence[torch.arange(halves)[:, None], tokens.reshape(halves, -1)]
        belief = evidence.view_as(states) * states
        total = belief.sum(-1, keepdim=True)
        if not bool((total > 0).all()):
            belief, total = torch.where(total > 0, belief, states), torch.where(total > 0, total, 1)
        return self.multiply(belief / total, self.step)

    def probs(self, states: Tensor) -> Tensor:
        return self.multiply(states, self.emit).log()

    def multiply(self, states: Tensor, matrix: Tensor) -> Tensor:
        """Multiply states [R, S, H] by the matrix [halves, H, K] of their half."""
        return (states.unflatten(0, (len(matrix), -1)).flatten(1, 2) @ matrix).view(*states.shape[:2], -1)


def make_chain(table: Tensor) -> HiddenDistribution:
    """Make the distribution of a Markov chain of tokens that begins uniformly: table [V, V] of the next token after
    each, or [V, V, V] after each two."""
    V = table.shape[-1]
    order = table.ndim - 1
    states = torch.arange(V**order)
    step = table.new_zeros(len(states), V, V**order)
    step[states[:, None], torch.arange(V), (states[:, None] * V + torch.arange(V)) % V**order] = table.reshape(-1, V)
    emit = F.one_hot(states % V, V).to(table.dtype)
    return HiddenDistribution(table.new_full((V**order,), V**-order), step.sum(1), emit)


def make_counter(table: Tensor) -> HiddenDistribution:
    """Make the hidden distribution of tokens whose sum modulo M decides on the next: table [M, V] gives its
    distribution by the sum, so every token matters to all that follow."""
    M, V = table.shape
    step = table.new_zeros(M, V, M, V)  # a state is the sum before a token, and the token
    for s in range(M):
        for v in range(V):
            step[s, v, (s + v) % M] = table[(s + v) % M]
    initial = torch.cat([table[0], table.new_zeros((M - 1) * V)])
    return HiddenDistribution(initial, step.reshape(M * V, M * V), torch.eye(V, dtype=table.dtype).repeat(M, 1))


class HashedTable(StateModel):
    """The distribution is the row of table [K, V], logits, that a polynomial hash of the prefix names (Karp & Rabin
    1987)."""

    def __init__(self, table: Tensor, length: int, rows: int, width: int, forced: Tensor, drafts: Tensor | None = None):
        line = torch.arange(table.shape[1], dtype=table.dtype)[:, None] / table.shape[1]
        super().__init__(torch.ones(rows, dtype=torch.int64), line, length, rows, width, forced, drafts)
        self.table = table

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        return torch.where(tokens < 0, states, (BASE * states + tokens + 1) % PRIME)

    def probs(self, states: Tensor) -> Tensor:
        return self.table[states % len(self.table)]


class TabularDrafter:
    """A draft model used as a `Drafter`. The feature index is ignored."""

    def __init__(self, draft: TokenModel):
        self.draft = draft
        self.shown: list[tuple[Tensor, ...]] = []  # nodes since `logits`

    def join(self, rows: Tensor, fresh: "TabularDrafter") -> None:
        """Do nothing. See TokenModel."""

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Do nothing: no feature is read. See Drafter."""

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        self.shown = []
        return self.draft.logits(tokens, positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] after further nodes, by running all nodes since `logits` through the draft model."""
        self.shown.append((tokens, positions, parents))
        shown = self.draft.tree(*(torch.cat(x, 1) for x in zip(*self.shown, strict=True)))
        return shown.logits[:, -tokens.shape[1] :]


class TabularHeads:
    """A draft model used as `Heads`."""

    def __init__(self, draft: TokenModel):
        self.draft = draft
        self.logits = draft.logits
        self.read: TreePass | None = None  # the target's last tree

    def continue_tree(self, tree: TreePass) -> Tensor:
        self.read = self.draft.tree(tree.tokens, tree.positions, tree.parents)
        return self.read.logits

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        assert self.read is not None
        self.draft.keep(self.read, nodes)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        return self.draft.tree(tokens, positions, parents).logits


def count_prefixes(vocab: int, length: int) -> int:
    """Count the prefixes, the empty one included, of sequences of `length` tokens."""
    return sum(vocab**i for i in range(length))


def random_table(vocab: int, length: int, generator: torch.Generator, scale: float = 1.5, pair: bool = False) -> Tensor:
    """Draw Gaussian logits with deviation `scale`, float64 [N, V] for N prefixes, or with `pair` [2, N, V]."""
    shape = (2, count_prefixes(vocab, length), vocab) if pair else (count_prefixes(vocab, length), vocab)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)
