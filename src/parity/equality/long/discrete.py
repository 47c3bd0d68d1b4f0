"""Long targets of discrete decoders: a chain of order 1 and one of order 2, a hidden-state model, and a counter.

chain    V = 8, laws that differ little from token to token: drafts are mostly right, windows run to their border
order 2  V = 4, a third of the laws rule a token out
hidden   V = 8, five states that stay for a while, which no few tokens tell; the last token of a row is forced
counter  V = 4, the law hangs on the sum of all tokens before, modulo 3: nothing is ever forgotten
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.keys import row_key
from parity.base.noise import counted_noise
from parity.decode.discrete import record
from parity.equality.rows import Row
from parity.equality.scores import score_rows
from parity.equality.targets import Decoder
from parity.equality.teacher_forced import slots
from parity.experiment.options import longest_place
from parity.models.discrete.hidden import HiddenMarkov, Law, chain, counter
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled, TokenSampling


class Drawn(NamedTuple):
    tokens: np.ndarray  # [n, L]
    laws: np.ndarray  # [n, L, V] of each token given those before it
    slot: np.ndarray  # [n, L] place of each token in the run of its pass
    ordered: bool  # whether that is known before the token is drawn, as in decoders that claim to be lossless


@dataclass(frozen=True)
class Target:
    """A hidden law, the draft model's, and how many sequences of which length are drawn of it."""

    name: str
    of: Law
    drafts: Law
    length: int
    width: int
    forced: Tensor  # [L]
    n: int

    @property
    def vocab(self) -> int:
        return self.of.emit.shape[1]

    def model(self, rows: int) -> TokenModel:
        return Sampled(HiddenMarkov(self.of, self.length, rows, self.width, self.forced, self.drafts), TokenSampling())

    @cached_property
    def law(self) -> np.ndarray:
        """[L, V, L, V] of every two tokens, by the forward algorithm."""
        L, V = self.length, self.vocab
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

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Drawn:
        """The target's own n decoded sequences, all in one batch: rows are at very different positions in it."""
        model, start = self.model(self.n), torch.zeros(self.n, dtype=torch.int64)
        noise = counted_noise(row_key(seed, self.name), range(self.n))
        try:
            done = record(model, start, decoder(model, start, noise=noise, **options))
        except ParityError as error:
            raise ParityError(f"model {self.name}, {error}") from error
        laws = self.laws(done.tokens)
        zero = (laws.gather(-1, done.tokens[..., None])[..., 0] == 0).nonzero()
        if strict and len(zero):
            row, i = zero[0].tolist()
            what = f"token {int(done.tokens[row, i])} of probability zero was sampled"
            raise ParityError(f"model {self.name}, row {row}, position {i}: {what}")
        return Drawn(done.tokens.numpy(), laws.numpy(), slots(done.step.numpy().astype(int)), strict)

    def rows_of(self, drawn: Drawn, layer: str, seed: int, draws: int) -> list[Row]:
        slot = drawn.slot if drawn.ordered else None
        return score_rows(layer, drawn.tokens, drawn.laws, self.law, slot, model=self.name, seed=seed)


def softmax(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)


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


MAKES: dict[str, Callable[[torch.Generator], tuple[Law, Law]]] = {
    "chain": chain_laws, "order 2": order_two_laws, "hidden": hidden_laws, "counter": counter_laws,
}  # fmt: skip
FORCED = ("hidden",)
LONGEST = 256


def sizes(options: dict[str, Any]) -> tuple[int, int]:
    """Length and width: rows twice as wide as one is behind the other, four of them, and twice the largest window."""
    width = max(16, 2 * options.get("ahead", 0))
    length = max(4 * width, width * math.ceil(2 * longest_place("discrete", options)[1] / width))
    return min(length, LONGEST), min(width, LONGEST // 4)


def targets(options: dict[str, Any], size: int, seed: int = 0, which: str = "") -> list[Target]:
    """Each is a function of its name, the options' sizes and the seed."""
    (length, width), result = sizes(options), []
    for make, laws in MAKES.items():
        generator = torch.Generator().manual_seed(row_key(seed, make) % 2**63)
        of, drafts = laws(generator)
        forced = torch.full((length,), -1)
        if make in FORCED:
            forced[width - 1 :: width] = of.emit.shape[1] - 1
        name = f"{make} {of.emit.shape[1]}x{length}"
        result.append(Target(name, of, drafts, length, width, forced, max(100, size // length)))
    return result
