"""Models of known law for discrete decoders: tables whose every sequence is listed, and long ones."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import digits
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import assign_slots
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sampling import Sampled, TokenSampling
from torch import Tensor

from parity.base.errors import ParityError
from parity.decode.discrete import Decoded, record
from parity.equality.martingale_tests import log_scores, score_rows, support_row
from parity.equality.targets import Decoder, Enumerated, generator_of
from parity.equality.targets.long import LONGEST, Drawn, Long, softmax
from parity.models.discrete.tabular import (
    HashedTable,
    HiddenMarkov,
    Law,
    TabularModel,
    make_chain,
    make_counter,
    pair_laws,
    random_table,
)

DRAWS = 9999
FAMILY = "targets"
PLAIN = TokenSampling()
SHAPES = ((2, 4), (3, 4), (3, 5))
SMALL = ("random-0 3x5", "disjoint 3x4", "one-hot 2x4", "top-k 3x5", "forced 3x4", "guided 3x5")


@dataclass(frozen=True)
class Target(Enumerated):
    """A table of laws, and how it is sampled."""

    name: str
    table: Tensor  # [N, V] or [2, N, V] logits, float64
    length: int
    width: int
    forced: Tensor | None = None  # [L]
    sampling: TokenSampling = PLAIN

    @property
    def vocab(self) -> int:
        return self.table.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.vocab, self.length

    def model(self, rows: int, dtype: torch.dtype = torch.float64) -> TokenModel:
        model = TabularModel(self.table.to(dtype), self.length, rows, self.width, self.forced)
        return model if self.sampling == PLAIN and self.forced is None else Sampled(model, self.sampling)

    @cached_property
    def law(self) -> np.ndarray:
        """The joint law [V^L], float64; ParityError if one of its reachable conditionals is not a law."""
        cells = torch.from_numpy(digits(self.vocab, self.length))
        return law_of(self.name, self.model(len(cells)), cells)

    def codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        rows, weights = len(noise.keys), self.vocab ** torch.arange(self.length - 1, -1, -1)
        model, start = self.model(rows, noise.dtype), torch.zeros(rows, dtype=torch.int64)
        return (record(model, start, decoder(model, start, noise=noise, **options)).tokens * weights).sum(1).numpy()


def conditionals(model: TokenModel, tokens: Tensor) -> Tensor:
    """Laws [n, L, V], float64, of tokens [n, L], each given those before it, by a fresh model of n rows."""
    inputs = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.int64), tokens[:, :-1]], 1)
    return model.logits(inputs, torch.arange(-1, tokens.shape[1] - 1).expand_as(tokens)).double().softmax(-1)


def law_of(name: str, model: TokenModel, cells: Tensor) -> np.ndarray:
    """The probabilities [K], float64, that a model of K rows gives to sequences cells [K, L]; ParityError if one of the
    conditionals that they reach is not a law."""
    p = conditionals(model, cells)
    own = p.gather(-1, cells[..., None])[..., 0]
    reached = torch.cat([torch.ones(len(cells), 1, dtype=own.dtype), own[:, :-1].cumprod(1)], 1)
    total = p.sum(-1)
    sound = p.isfinite().all(-1) & ((total - 1).abs() <= 1e-9) & (p >= 0).all(-1)
    bad = ~sound & (reached != 0)  # what cannot be reached need not be a law
    if bad.any():
        position, row = bad.T.nonzero()[0].tolist()
        what = f"p is not a law (sum {float(total[row, position]):.6g})"
        raise ParityError(f"model {name}, row {row}, position {position}: {what}")
    return torch.where(reached == 0, 0.0, own).prod(1).numpy()


Table = Callable[[int, int, torch.Generator], Tensor]  # V, L -> logits


def disjoint_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws [N, V] that nearly exclude one token each, another one after every token: old drafts seldom fit."""
    table = random_table(vocab, length, generator, 1.0)
    return table.scatter_(1, (torch.arange(len(table)) % vocab)[:, None], -8.0)


def one_hot_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Half of the laws [N, V] are certain of one token, the others are random."""
    table = random_table(vocab, length, generator)
    certain = torch.rand(len(table), 1, generator=generator, dtype=torch.float64) < 0.5
    certain[0] = False
    hot = torch.nn.functional.one_hot(torch.randint(vocab, (len(table),), generator=generator), vocab).bool()
    return torch.where(certain & ~hot, float("-inf"), table)


def flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws [N, V] that depend on the position alone: p == q wherever a draft came from this position."""
    laws = 1.5 * torch.randn(length, vocab, generator=generator, dtype=torch.float64)  # the scale of random_table
    return laws.repeat_interleave(torch.tensor([vocab**i for i in range(length)]), 0)


guided_table = partial(random_table, scale=1.0, pair=True)  # conditional and unconditional laws
MAKES: dict[str, tuple[Table, dict[str, Any]]] = {  # tables, and how they are sampled
    **{f"random-{k}": (random_table, {}) for k in range(3)},
    "sharp": (partial(random_table, scale=4.0), {}),
    "disjoint": (disjoint_table, {}),
    "flat": (flat_table, {}),
    "one-hot": (one_hot_table, {}),
    "forced": (random_table, {}),  # the second and the last token
    "guided": (guided_table, {"guidance": 2.0}),
    "top-k": (random_table, {"top_k": 2}),  # these two for V > 2
    "all": (guided_table, {"guidance": 3.0, "temperature": 0.9, "top_k": 2}),  # and the third token forced
}


def forced_tokens(make: str, vocab: int, length: int) -> Tensor | None:
    """[L] the tokens that a target's grammar forces, -1 elsewhere."""
    places = {"forced": {1: vocab - 1, length - 1: vocab - 1}, "all": {2: 0}}.get(make)
    return None if places is None else torch.tensor([places.get(i, -1) for i in range(length)])


def targets(which: str = "full", seed: int = 0) -> list[Target]:
    """Every target ("full"), or six of them ("small"); each is a function of (its name, seed) alone."""
    if which not in ("full", "small"):
        raise ParityError(f"models = {which!r}: allowed: 'full' or 'small'")
    result = []
    for V, L in SHAPES:
        for make, (table, settings) in MAKES.items():
            name, sampling = f"{make} {V}x{L}", TokenSampling(**settings)
            if sampling.top_k < V and (which == "full" or name in SMALL):
                logits = table(V, L, generator_of(name, seed))
                result.append(Target(name, logits, L, 2, forced_tokens(make, V, L), sampling))
    return result


# Long sequences

Make = Callable[[int, int, int, Tensor], TokenModel]  # of length, rows, width, forced


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """A model of a law of any length."""

    make: Make
    width: int
    forced: Tensor  # [L]
    of: Law | None = None  # where pairs are known

    def model(self, rows: int) -> TokenModel:
        return self.make(self.length, rows, self.width, self.forced)

    @cached_property
    def law(self) -> np.ndarray | None:
        """By the forward algorithm."""
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
        return conditionals(self.model(len(tokens)), tokens)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.n, dtype=torch.int64)

    def record(self, decoder: Decoder, start: Tensor, options: dict[str, Any]) -> Decoded:
        model = self.model(len(start))
        return record(model, start, decoder(model, start, **options))

    def to_drawn(self, start: Tensor, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        known = np.zeros(tokens.shape, bool)
        return Drawn(tokens.numpy(), self.laws(tokens).numpy(), known, assign_slots(step.numpy().astype(int)), ordered)

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        """Of a token of a large vocabulary, tests see only the eighth of its law that it is in."""
        tokens, p, slot = drawn.tokens, drawn.laws, drawn.slot if drawn.ordered else None
        if p.shape[2] <= MANY:
            return super().scored(drawn, layer, whole, **place)
        forced = (p.max(2) == 1).all(0) & np.ones(tokens.shape, bool)
        scores = log_scores(tokens, np.where(forced[..., None], 0, p), ~forced)
        part = np.minimum(((p.cumsum(2) - p / 2) * PARTS).astype(np.int8), PARTS - 1)
        eighths = np.stack([np.where(part == k, p, 0).sum(2) for k in range(PARTS)], 2)
        own = np.take_along_axis(part, tokens[..., None], 2)[..., 0].astype(int)
        rows = score_rows(layer, own, eighths, None, slot, forced, scores, **place)
        impossible = np.take_along_axis(p, tokens[..., None], 2)[..., 0] == 0
        return rows + ([support_row(layer, impossible, **place)] if impossible.any() else [])


def mixed(law: Tensor) -> Tensor:
    """The laws of a draft model: those of the target mixed with those of the next context."""
    return 0.7 * law + 0.3 * law.roll(1, 0)


def chain_table(generator: torch.Generator) -> Tensor:
    return 0.8 * softmax((1, 8), 1.0, generator) + 0.2 * softmax((8, 8), 3.0, generator)


def order_two_table(generator: torch.Generator) -> Tensor:
    table = softmax((4, 4, 4), 1.5, generator)
    out = torch.arange(16).view(4, 4, 1) % 3 == 0
    table = torch.where(out & (table == table.amin(-1, keepdim=True)), 0.0, table)
    return table / table.sum(-1, keepdim=True)


def hidden_law(generator: torch.Generator) -> tuple[Callable[[Tensor], Law], Tensor]:
    step = 0.9 * torch.eye(5, dtype=torch.float64) + 0.1 * softmax((5, 5), 1.0, generator)
    return partial(Law, torch.full((5,), 0.2, dtype=torch.float64), step), softmax((5, 8), 1.5, generator)


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
    tables = [chain_table(generator) for _ in range(2)]
    law, drafts = pair_laws(*map(make_chain, tables)), pair_laws(*(make_chain(mixed(t)) for t in tables))
    sampling = TokenSampling(guidance=2.0, top_k=5)
    return lambda length, rows, width, forced: Sampled(HiddenMarkov(law, length, rows, width, forced, drafts), sampling)


FORCED = ("hidden", "hash")
MANY, PARTS = 16, 8  # tokens that tables have room for; parts of the law of more
MOST, TABLES = 256, 256


def sizes(reach: Mapping[str, int]) -> tuple[int, int]:
    """Length and width: at least four rows, each twice as wide as the lag between rows, and twice the largest
    window."""
    width = max(16, 2 * reach["lag"])
    length = max(4 * width, width * math.ceil(2 * max(reach.values()) / width))
    return min(length, LONGEST), min(width, LONGEST // 4)


def long_targets(reach: Mapping[str, int], size: int, seed: int = 0, which: str = "") -> list[LongTarget]:
    """Each is a function of its name, how far a pass looks (`parity.experiment.options.reach`) and the seed.

    chain    V = 8, laws that differ little from token to token: drafts are mostly right, windows run to their border
    order 2  V = 4, a third of the laws rule a token out
    hidden   V = 8, five states that stay for a while, which no few tokens tell; the last token of a row is forced
    counter  V = 4, the law hangs on the sum of all tokens before, modulo 3: nothing is ever forgotten
    far      order 2 on 256 tokens, where the others are shorter: faults that begin late
    hash     V = 256, a hash of all tokens before rules three quarters of them out: what is drawn from elsewhere
             shows. Tests see which eighth of its law a token is of. A sixteenth of the tokens; the last of a row is
             forced
    guided   V = 8, of two chains by guidance 2 and top-k 5: the law is known token by token, not that of pairs
    """
    (length, width), result = sizes(reach), []

    def add(name: str, make: Make, V: int, length: int = length, share: int = 1, **more: Any) -> None:
        forced = torch.full((length,), -1)
        if name in FORCED:
            forced[width - 1 :: width] = V - 1
        rows = max(100, size // length // share)
        name = f"{name} {V}x{length}"
        result.append(LongTarget(name=name, make=make, length=length, width=width, forced=forced, n=rows, **more))

    def generator(name: str) -> torch.Generator:
        return generator_of(name, seed)

    law_of_table: dict[str, tuple[Callable[[Tensor], Law], Tensor]] = {
        "chain": (make_chain, chain_table(generator("chain"))),
        "order 2": (make_chain, order_two_table(generator("order 2"))),
        "hidden": hidden_law(generator("hidden")),
        "counter": (make_counter, softmax((3, 4), 1.0, generator("counter"))),
    }
    for name, (law, table) in law_of_table.items():
        add(name, mixture(law(table), law(mixed(table))), table.shape[-1], of=law(table), alone=name == "chain")
    if length < LONGEST:
        table = order_two_table(generator("far"))
        add("far", mixture(make_chain(table), make_chain(mixed(table))), 4, LONGEST, far=True)
    add("hash", hashed(generator("hash")), MOST, share=16)
    add("guided", guided(generator("guided")), 8, share=2)
    return result
