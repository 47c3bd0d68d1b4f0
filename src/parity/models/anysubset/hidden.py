"""Any-subset models of any length whose conditionals, of a word given any subset of the others, are known.

A *rule* gives this distribution in closed form. Except for `Sharpened`, the distributions are those of one joint, so
every order of decoding has the same distribution, and a prompt follows the distribution if its words were drawn from
it.
"""

from typing import Protocol

import torch
from parity_decoders.protocols.anysubset import invert_order
from torch import Tensor

CHUNK = 2**21  # a call of a rule reads at most about this many words, to bound its memory


class Rule(Protocol):
    words: int  # a rule has V = `words` words

    def probs_given(self, words: Tensor, positions: Tensor) -> Tensor:
        """Compute distributions [Q, V] of the words at `positions` [Q], given `words` [Q, N], in which V stands for
        unknown."""
        ...


def normalise(weights: Tensor) -> Tensor:
    """Scale weights [..., V] to sum to 1; uniform where all are 0, which follows words that cannot occur together."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 1 / weights.shape[-1])


class Strided:
    """Markov chains side by side, begun at their stationary distribution: a word follows the one `stride` before it, by
    table [V, V]. Of the known words only the nearest of the same chain on each side matter, each by a power of the
    table."""

    def __init__(self, table: Tensor, length: int, stride: int = 1):
        self.words = len(table)
        self.stride = stride
        stationary = torch.linalg.matrix_power(table, 2**20)[0]
        powers = [torch.eye(self.words, dtype=table.dtype)]
        while len(powers) <= -(-length // stride):
            powers.append(powers[-1] @ table)
        all_powers = torch.stack(powers)
        # a distribution is a factor for each side, by distance and word of the nearest known one; the last row is for
        # no word
        self.left = torch.cat([all_powers, stationary.expand(len(all_powers), 1, -1)], 1)
        self.right = torch.cat([all_powers.mT, torch.ones_like(all_powers[:, :1])], 1)

    def probs_given(self, words: Tensor, positions: Tensor) -> Tensor:
        position = torch.arange(words.shape[1])
        offset = position - positions[:, None]
        same_chain = (words < self.words) & (offset % self.stride == 0)
        sides = []
        for table, side in ((self.left, same_chain & (offset < 0)), (self.right, same_chain & (offset > 0))):
            distances = torch.where(side, offset.abs(), words.shape[1])
            distance, nearest = distances.min(1)
            word = torch.where(distance < words.shape[1], words.gather(1, nearest[:, None])[:, 0], self.words)
            sides.append(table[torch.where(word < self.words, distance // self.stride, 0), word])
        return normalise(sides[0] * sides[1])


class Parity:
    """Blocks of `period` words: independent draws from `base` [V], weighted by `total` [V] at their sum modulo V. A
    word's distribution depends on its block only if nearly all of that is known. Words of a shorter last block are
    independent."""

    def __init__(self, base: Tensor, total: Tensor, period: int, length: int):
        """Store blocks of `period` words drawn from base [V] and weighted by total [V] at their sum, and compute how
        the sum of a block's known words is weighted, by the number of unknown ones."""
        self.words = len(base)
        self.base = base
        self.period = period
        self.whole = length // period * period
        sums = (torch.arange(self.words)[:, None] + torch.arange(self.words)) % self.words
        weights = [total]  # the weight of the known words' sum, by the number of unknown words
        for _ in range(period - 1):
            weights.append((base * weights[-1][sums]).sum(1))
        self.weights = torch.stack(weights)

    def probs_given(self, words: Tensor, positions: Tensor) -> Tensor:
        position = torch.arange(words.shape[1])
        same_block = (position // self.period == (positions // self.period)[:, None]) & (position != positions[:, None])
        readable = same_block & (words < self.words)
        unknown, total = (same_block & ~readable).sum(1), torch.where(readable, words, 0).sum(1)
        sums = (total[:, None] + torch.arange(self.words)) % self.words
        unknown = unknown.clamp(max=self.period - 1)
        weights = self.base * self.weights[unknown[:, None], sums]
        return normalise(torch.where((positions < self.whole)[:, None], weights, self.base))


class Hidden:
    """A hidden Markov model: begin [H], step [H, H], emit [H, V]; forward and backward messages (Rabiner 1989)."""

    def __init__(self, begin: Tensor, step: Tensor, emit: Tensor):
        self.words = emit.shape[1]
        self.begin = begin
        self.step = step
        self.emit = emit
        # probabilities are multiplied by V, so that products over hundreds of words do not underflow; 1 if unknown
        self.evidence = torch.cat([emit.T * self.words, emit.new_ones(1, len(begin))])

    def probs_given(self, words: Tensor, positions: Tensor) -> Tensor:
        """Compute distributions [Q, V] of the words at `positions` [Q] given the words [Q, N], in which V stands for
        unknown, by forward and backward messages; neighbouring rows with the same words share theirs."""
        new = torch.cat([torch.ones(1, dtype=torch.bool), (words[1:] != words[:-1]).any(1)])
        rows = words[new]
        group = new.cumsum(0) - 1
        columns = (rows < self.words).any(0).nonzero()
        last_known = int(columns.max()) if len(columns) else 0
        forward, backward = [self.begin.expand(len(rows), -1)], [torch.ones_like(self.begin).expand(len(rows), -1)]
        for i in range(int(positions.max())):
            forward.append((forward[-1] * self.evidence[rows[:, i]]) @ self.step)
        for i in range(last_known, 0, -1):  # backward[j] is the message of the words after position last_known - j
            backward.append((backward[-1] * self.evidence[rows[:, i]]) @ self.step.T)
        steps_back = (last_known - positions).clamp(min=0)
        state = torch.stack(forward)[positions, group] * torch.stack(backward)[steps_back, group]
        return normalise(state @ self.emit)


class Sharpened:
    """A rule's distributions to a power. Like a network's they are of no joint: the order of decoding changes the
    distribution."""

    def __init__(self, rule: Rule, power: float):
        self.rule = rule
        self.words = rule.words
        self.power = power

    def probs_given(self, words: Tensor, positions: Tensor) -> Tensor:
        return normalise(self.rule.probs_given(words, positions) ** self.power)


class LongSubset:
    """A rule as an `AnySubsetModel`, float64."""

    def __init__(self, rule: Rule):
        self.rule = rule
        self.vocab = rule.words + 1
        self.mask = rule.words

    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V + 1] for `AnySubsetModel`: of rank ranks[b, s] given the tokens of ranks below
        n_seen[b, s]. `n_prompt` is not read; the last entry, the mask's, is 0."""
        (B, N) = tokens.shape
        S = ranks.shape[1]
        rank = invert_order(order)
        positions = order.gather(1, ranks.clamp(max=N - 1))
        size = max(1, CHUNK // (N * max(S, 1)))
        result = []
        for a in range(0, B, size):
            b = slice(a, a + size)
            words_seen = torch.where(rank[b, None] < n_seen[b, :, None], tokens[b, None], self.mask)
            result.append(self.rule.probs_given(words_seen.flatten(0, 1), positions[b].flatten()).unflatten(0, (-1, S)))
        probs = torch.cat(result)
        return torch.cat([probs, probs.new_zeros(B, S, 1)], -1)


def draw_texts(rule: Rule, uniform: Tensor) -> Tensor:
    """Draw texts [n, N] from a rule's joint distribution, from the left, by inverting its distributions at `uniform`
    numbers [n, N]."""
    words = torch.full(uniform.shape, rule.words)
    for i in range(uniform.shape[1]):
        probs = rule.probs_given(words, torch.full((len(words),), i))
        words[:, i] = (uniform[:, i : i + 1] > probs.cumsum(1)).sum(1).clamp(max=rule.words - 1)
    return words


def compute_pair_probs(rule: Rule, length: int) -> Tensor:
    """Compute the joint distribution [N, V, N, V] of the words at every two positions of a text of `length` N."""
    N, V = length, rule.words
    positions = torch.arange(N)
    marginals = rule.probs_given(torch.full((N, N), V), positions)
    result = []
    for i in range(N):
        words = torch.full((V, N), V)
        words[:, i] = torch.arange(V)
        probs = rule.probs_given(words.repeat_interleave(N, 0), positions.repeat(V)).view(V, N, V)
        probs[:, i] = torch.eye(V, dtype=probs.dtype)
        result.append(marginals[i, :, None, None] * probs)
    return torch.stack(result)
