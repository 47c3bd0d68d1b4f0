"""Any-subset models of any length whose conditionals are all known: of a word given any subset of the others.

A *rule* is that law in closed form: `words` V, and `given(known [Q, N], at [Q]) -> [Q, V]`, the law of the word at a
position given the known words, where V means unknown. Except for `Sharpened`, each is the law of one joint, so every
order of decoding has the same law, and a prompt follows the law if its words were drawn from it.
"""

from typing import Protocol

import torch
from torch import Tensor

from parity.models.anysubset.protocol import ranked

CHUNK = 2**21  # known words looked at together


class Rule(Protocol):
    @property
    def words(self) -> int: ...

    def laws_given(self, known: Tensor, at: Tensor) -> Tensor: ...


def normalised(weights: Tensor) -> Tensor:
    """Laws [..., V]; even ones after words that cannot stand together."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 1 / weights.shape[-1])


class Strided:
    """Chains of order 1 laid side by side: a word follows the one `stride` before it, by table [V, V]. They begin at
    rest. Given any words, the nearest known ones of a chain's own say all (Markov): a power of the table each side."""

    def __init__(self, table: Tensor, length: int, stride: int = 1):
        self.words, self.stride = len(table), stride
        rest = torch.linalg.matrix_power(table, 2**20)[0]
        powers = [torch.eye(self.words, dtype=table.dtype)]
        while len(powers) <= -(-length // stride):
            powers.append(powers[-1] @ table)
        each, none = torch.stack(powers), torch.ones_like(rest)
        # by distance and word on that side; the last row is for no word
        self.left = torch.cat([each, rest.expand(len(each), 1, -1)], 1)
        self.right = torch.cat([each.mT, none.expand(len(each), 1, -1)], 1)

    def laws_given(self, known: Tensor, at: Tensor) -> Tensor:
        place = torch.arange(known.shape[1])
        away = place - at[:, None]
        own = (known < self.words) & (away % self.stride == 0)
        sides = []
        for table, here in ((self.left, own & (away < 0)), (self.right, own & (away > 0))):
            far = torch.where(here, away.abs(), known.shape[1])
            distance, nearest = far.min(1)
            word = torch.where(distance < known.shape[1], known.gather(1, nearest[:, None])[:, 0], self.words)
            sides.append(table[torch.where(word < self.words, distance // self.stride, 0), word])
        return normalised(sides[0] * sides[1])


class Parity:
    """Blocks of `period` words, independent draws of `base` [V] but for what their sum modulo V does to the weight,
    `total` [V]: a word is told something by its block if nearly all the rest of it is known. The words of a last,
    shorter block are independent."""

    def __init__(self, base: Tensor, total: Tensor, period: int, length: int):
        self.words, self.base, self.period, self.whole = len(base), base, period, length // period * period
        around = (torch.arange(self.words)[:, None] + torch.arange(self.words)) % self.words
        behind = [total]  # by others that are unknown: the weight of what the known ones add up to
        for _ in range(period - 1):
            behind.append((base * behind[-1][around]).sum(1))
        self.behind = torch.stack(behind)

    def laws_given(self, known: Tensor, at: Tensor) -> Tensor:
        place = torch.arange(known.shape[1])
        own = (place // self.period == (at // self.period)[:, None]) & (place != at[:, None])
        readable = own & (known < self.words)
        unknown, total = (own & ~readable).sum(1), torch.where(readable, known, 0).sum(1)
        sums = (total[:, None] + torch.arange(self.words)) % self.words
        unknown = unknown.clamp(max=self.period - 1)
        weights = self.base * self.behind[unknown[:, None], sums]
        return normalised(torch.where((at < self.whole)[:, None], weights, self.base))


class Hidden:
    """A hidden Markov model: begin [H], step [H, H], emit [H, V]; forward and backward messages (Rabiner 1989)."""

    def __init__(self, begin: Tensor, step: Tensor, emit: Tensor):
        self.words, self.begin, self.step, self.emit = emit.shape[1], begin, step, emit
        # times V, so that products over hundreds of words stay numbers
        self.told = torch.cat([emit.T * self.words, emit.new_ones(1, len(begin))])

    def laws_given(self, known: Tensor, at: Tensor) -> Tensor:
        """Rows of the same words share their messages: they are asked for row after row."""
        same = torch.cat([torch.ones(1, dtype=torch.bool), (known[1:] != known[:-1]).any(1)])
        one, which = known[same], same.cumsum(0) - 1
        far, told = int(at.max()), (one < self.words).any(0).nonzero()
        last = int(told.max()) if len(told) else 0
        ahead, behind = [self.begin.expand(len(one), -1)], [torch.ones_like(self.begin).expand(len(one), -1)]
        for i in range(far):
            ahead.append((ahead[-1] * self.told[one[:, i]]) @ self.step)
        for i in range(last, 0, -1):  # behind[j] is what is said behind place last - j
            behind.append((behind[-1] * self.told[one[:, i]]) @ self.step.T)
        state = torch.stack(ahead)[at, which] * torch.stack(behind)[(last - at).clamp(min=0), which]
        return normalised(state @ self.emit)


class Sharpened:
    """A rule's laws to a power: no joint's, as a network's are not, so another order of decoding is another law."""

    def __init__(self, rule: Rule, power: float):
        self.rule, self.words, self.power = rule, rule.words, power

    def laws_given(self, known: Tensor, at: Tensor) -> Tensor:
        return normalised(self.rule.laws_given(known, at) ** self.power)


class LongSubset:
    """A rule as an `AnySubsetModel`, float64."""

    def __init__(self, rule: Rule):
        self.rule, self.vocab, self.mask = rule, rule.words + 1, rule.words

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        """See `AnySubsetModel`."""
        (B, N), S = tokens.shape, ranks.shape[1]
        rank, at = ranked(order), order.gather(1, ranks.clamp(max=N - 1))
        size, result = max(1, CHUNK // (N * max(S, 1))), []
        for a in range(0, B, size):
            b = slice(a, a + size)
            known = torch.where(rank[b, None] < seen[b, :, None], tokens[b, None], self.mask)
            result.append(self.rule.laws_given(known.flatten(0, 1), at[b].flatten()).unflatten(0, (-1, S)))
        laws = torch.cat(result)
        return torch.cat([laws, laws.new_zeros(B, S, 1)], -1)


def drawn(rule: Rule, uniform: Tensor) -> Tensor:
    """Texts [n, N] of a rule's joint, word by word from the left, of uniform numbers [n, N]."""
    known = torch.full(uniform.shape, rule.words)
    for i in range(uniform.shape[1]):
        law = rule.laws_given(known, torch.full((len(known),), i))
        known[:, i] = (uniform[:, i : i + 1] > law.cumsum(1)).sum(1).clamp(max=rule.words - 1)
    return known


def pair_law(rule: Rule, length: int) -> Tensor:
    """[N, V, N, V] of every two words."""
    N, V = length, rule.words
    places, result = torch.arange(N), torch.zeros(N, V, N, V, dtype=torch.float64)
    nothing = torch.full((N, N), V)
    one = rule.laws_given(nothing, places)
    for i in range(N):
        known = torch.full((V, N), V)
        known[:, i] = torch.arange(V)
        each = known.repeat_interleave(N, 0)
        law = rule.laws_given(each, places.repeat(V)).view(V, N, V)
        law[:, i] = torch.eye(V, dtype=law.dtype)
        result[i] = one[i, :, None, None] * law
    return result
