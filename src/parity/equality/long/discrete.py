"""Long targets of discrete decoders: chains, hidden states, a counter, a table under a hash, and guided ones.

chain    V = 8, laws that differ little from token to token: drafts are mostly right, windows run to their border
order 2  V = 4, a third of the laws rule a token out
hidden   V = 8, five states that stay for a while, which no few tokens tell; the last token of a row is forced
counter  V = 4, the law hangs on the sum of all tokens before, modulo 3: nothing is ever forgotten
hash     V = 1,024, a hash of all tokens before rules three quarters of them out: what is drawn from elsewhere shows.
         Tests see which eighth of its law a token is of. A sixteenth of the tokens; the last of a row is forced
far      order 2 on 256 tokens, where the others are shorter: faults that begin late
guided   V = 8, of two chains by guidance 2 and top-k 5: the law is known token by token, not that of pairs
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import slots
from torch import Tensor

from parity.decode.discrete import Decoded, record
from parity.equality.long import LONGEST, Drawn, LongTarget, softmax
from parity.equality.martingale_tests import log_scores, score_rows, support_row
from parity.equality.targets import Decoder, generator_of
from parity.experiment.options import longest_place
from parity.models.discrete.hidden import Guided, HashedTable, HiddenMarkov, Law, chain, counter
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled, TokenSampling

Make = Callable[[int, int, int, Tensor], TokenModel]  # of length, rows, width, forced


@dataclass(frozen=True, kw_only=True)
class Target(LongTarget):
    """A law of any length, and how many sequences of which length are drawn of it."""

    make: Make
    width: int
    forced: Tensor  # [L]
    of: Law | None = None  # where pairs are known

    def model(self, rows: int) -> TokenModel:
        return self.make(self.length, rows, self.width, self.forced)

    @cached_property
    def law(self) -> np.ndarray | None:
        """[L, V, L, V] of every two tokens, by the forward algorithm."""
        if self.of is None:
            return None
        L, V = self.length, self.of.emit.shape[1]
        certain = torch.nn.functional.one_hot(self.forced.clamp(min=0), V).double()
        free = (self.forced < 0).tolist()
        emit = [self.of.emit if free[i] else certain[i].expand_as(self.of.emit) for i in range(L)]
        two = torch.zeros(L, V, L, V, dtype=torch.float64)
        belief = self.of.begin
        for i in range(L):
            two[i, :, i] = torch.diag(belief @ emit[i])
            ahead = (emit[i].T * belief) @ self.of.step  # [V, H] token i, and the state behind it
            for j in range(i + 1, L):
                two[i, :, j] = ahead @ emit[j]
                two[j, :, i] = two[i, :, j].T
                ahead = ahead @ self.of.step
            belief = belief @ self.of.step
        return two.numpy()

    def laws(self, tokens: Tensor) -> Tensor:
        """[n, L, V] given the tokens [n, L] before."""
        inputs = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.int64), tokens[:, :-1]], 1)
        return self.model(len(tokens)).logits(inputs, torch.arange(-1, self.length - 1).expand_as(tokens)).softmax(-1)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.n, dtype=torch.int64)

    def record(self, decoder: Decoder, start: Tensor, options: dict[str, Any]) -> Decoded:
        model = self.model(len(start))
        return record(model, start, decoder(model, start, **options))

    def to_drawn(self, start: Tensor, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        known = np.zeros(tokens.shape, bool)
        return Drawn(tokens.numpy(), self.laws(tokens).numpy(), known, slots(step.numpy().astype(int)), ordered)

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        """Tokens of a large vocabulary are told apart by the eighth of their law alone."""
        tokens, p, slot = drawn.tokens, drawn.laws, drawn.slot if drawn.ordered else None
        if p.shape[2] <= MANY:
            return score_rows(layer, tokens, p, self.law if whole else None, slot, far=self.far and whole, **place)
        forced = (p.max(2) == 1).all(0) & np.ones(tokens.shape, bool)
        scores = log_scores(tokens, np.where(forced[..., None], 0, p), ~forced)
        part = np.minimum(((p.cumsum(2) - p / 2) * PARTS).astype(np.int8), PARTS - 1)
        eighths = np.stack([np.where(part == k, p, 0).sum(2) for k in range(PARTS)], 2)
        own = np.take_along_axis(part, tokens[..., None], 2)[..., 0].astype(int)
        rows = score_rows(layer, own, eighths, None, slot, forced, scores, **place)
        impossible = np.take_along_axis(p, tokens[..., None], 2)[..., 0] == 0
        return rows + ([support_row(layer, impossible, **place)] if impossible.any() else [])


def mixed(law: Tensor) -> Tensor:
    """What a draft model knows: the law, and something of the next context's."""
    return 0.7 * law + 0.3 * law.roll(1, 0)


def chain_laws(generator: torch.Generator) -> tuple[Law, Law]:
    table = 0.8 * softmax((1, 8), 1.0, generator) + 0.2 * softmax((8, 8), 3.0, generator)
    return chain(table), chain(mixed(table))


def order_two_laws(generator: torch.Generator) -> tuple[Law, Law]:
    table = softmax((4, 4, 4), 1.5, generator)
    out = torch.arange(16).view(4, 4, 1) % 3 == 0
    table = torch.where(out & (table == table.amin(-1, keepdim=True)), 0.0, table)
    table = table / table.sum(-1, keepdim=True)
    return chain(table), chain(mixed(table))


def hidden_laws(generator: torch.Generator) -> tuple[Law, Law]:
    step = 0.9 * torch.eye(5, dtype=torch.float64) + 0.1 * softmax((5, 5), 1.0, generator)
    emit, begin = softmax((5, 8), 1.5, generator), torch.full((5,), 0.2, dtype=torch.float64)
    return Law(begin, step, emit), Law(begin, step, mixed(emit))


def counter_laws(generator: torch.Generator) -> tuple[Law, Law]:
    table = softmax((3, 4), 1.0, generator)
    return counter(table), counter(mixed(table))


def mixture(of: Law, drafts: Law) -> Make:
    return lambda length, rows, width, forced: Sampled(
        HiddenMarkov(of, length, rows, width, forced, drafts), TokenSampling()
    )


def hashed(generator: torch.Generator) -> Make:
    base, out = softmax((1, MOST), 1.0, generator), torch.rand(TABLES, MOST, generator=generator) < 0.75
    law = torch.where(out, 0.0, base)
    drafts = torch.where(out & out.roll(1, 0), 0.0, base)
    return lambda length, rows, width, forced: Sampled(
        HashedTable(law.log(), length, rows, width, forced, drafts.log()), TokenSampling()
    )


def guided(generator: torch.Generator) -> Make:
    pairs = [chain_laws(generator) for _ in range(2)]
    sampling = TokenSampling(guidance=2.0, top_k=5)
    return lambda length, rows, width, forced: Sampled(
        Guided(*(HiddenMarkov(of, length, rows, width, forced, drafts) for of, drafts in pairs)), sampling
    )


MAKES: dict[str, Callable[[torch.Generator], tuple[Law, Law]]] = {
    "chain": chain_laws, "order 2": order_two_laws, "hidden": hidden_laws, "counter": counter_laws,
}  # fmt: skip
WITHOUT_PAIRS: dict[str, tuple[Callable[[torch.Generator], Make], int, int]] = {  # V, and the share of tokens drawn
    "hash": (hashed, 1024, 16), "guided": (guided, 8, 2),
}  # fmt: skip
FORCED = ("hidden", "hash")
MANY, PARTS = 16, 8  # tokens that tables have room for; parts of the law of more
MOST, TABLES = 1024, 256


def sizes(options: dict[str, Any]) -> tuple[int, int]:
    """Length and width: rows twice as wide as one is behind the other, four of them, and twice the largest window."""
    width = max(16, 2 * options.get("ahead", 0))
    length = max(4 * width, width * math.ceil(2 * longest_place("discrete", options)[1] / width))
    return min(length, LONGEST), min(width, LONGEST // 4)


def targets(options: dict[str, Any], size: int, seed: int = 0, which: str = "") -> list[Target]:
    """Each is a function of its name, the options' sizes and the seed."""
    (length, width), result = sizes(options), []

    def add(name: str, make: Make, V: int, length: int = length, share: int = 1, **more: Any) -> None:
        forced = torch.full((length,), -1)
        if name in FORCED:
            forced[width - 1 :: width] = V - 1
        rows = max(100, size // length // share)
        name = f"{name} {V}x{length}"
        result.append(Target(name=name, make=make, length=length, width=width, forced=forced, n=rows, **more))

    for name, laws in MAKES.items():
        of, drafts = laws(generator_of(name, seed))
        add(name, mixture(of, drafts), of.emit.shape[1], of=of, alone=name == "chain")
    if length < LONGEST:
        add("far", mixture(*order_two_laws(generator_of("far", seed))), 4, LONGEST, far=True)
    for name, (make, V, share) in WITHOUT_PAIRS.items():
        add(name, make(generator_of(name, seed)), V, share=share)
    return result
