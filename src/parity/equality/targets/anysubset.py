"""Small any-subset models and prompts. Their law is that of the lattice order (Guo & Ermon 2025, Eq. 4).

On the "random" targets, as on a network, another order is another law; on the "consistent" ones every order has the
same, so what is rejected there is rejected for its arithmetic alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decode.anysubset import record
from parity.equality.targets import Decoder, EnumeratedTarget, generator_of
from parity.models.anysubset.protocol import Infilling, infilling
from parity.models.anysubset.tabular import TabularAnySubset, codes, consistent_table, joint_law, random_table

DRAWS = 1999
FAMILY = "targets"


@dataclass(frozen=True)
class Target(EnumeratedTarget):
    """A model and a prompt: known tokens by position."""

    name: str
    model: TabularAnySubset
    prompt: dict[int, int]

    @cached_property
    def length(self) -> int:
        return self.model.length

    @cached_property
    def vocab(self) -> int:
        return self.model.words

    @property
    def drawn_length(self) -> int:
        return self.length - len(self.prompt)

    def start(self, rows: int) -> Infilling:
        tokens = torch.full((rows, self.model.length), self.model.mask)
        for position, token in self.prompt.items():
            tokens[:, position] = token
        return infilling(tokens, tokens != self.model.mask, self.model.mask, self.model.vocab)

    @cached_property
    def law(self) -> np.ndarray:
        """Of the missing tokens, first rank most significant."""
        return joint_law(self.model, self.start(1))

    def codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        start = self.start(len(noise.keys))
        done = record(self.model, start, decoder(self.model, start, noise=noise, **options))
        return codes(self.model, start, done.tokens)


def flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws that depend on the position alone: drafts are always right, p == q."""
    laws = 1.5 * torch.randn(1, length, vocab, generator=generator, dtype=torch.float64)
    return laws.expand((vocab + 1) ** length, -1, -1)


MAKES: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], int, int, dict[int, int]]] = {
    "random 3x5": (random_table, 3, 5, {2: 1}),
    "random 2x6": (random_table, 2, 6, {0: 1, 4: 0}),
    "sharp 3x4": (partial(random_table, scale=4.0), 3, 4, {3: 2}),
    "consistent 3x5": (consistent_table, 3, 5, {1: 0}),
    "consistent 3x4": (consistent_table, 3, 4, {0: 2}),
    "flat 3x4": (flat_table, 3, 4, {1: 1}),
}


def targets(which: str = "full") -> list[Target]:
    return [
        Target(name, TabularAnySubset(table(vocab, length, generator_of(name, 0))), prompt)
        for name, (table, vocab, length, prompt) in MAKES.items()
    ]
