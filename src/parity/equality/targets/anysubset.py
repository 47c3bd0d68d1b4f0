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
from parity_certify.joint_tests import code_rows
from parity_certify.result_rows import Row
from parity_certify.seeding import row_key
from torch import Tensor

from parity.base.noise import counted_noise
from parity.decode.anysubset import record
from parity.equality.targets import Decoder, in_chunks
from parity.models.anysubset.protocol import Infilling, infilling
from parity.models.anysubset.tabular import TabularAnySubset, codes, consistent_table, joint_law, random_table

DRAWS = 1999
FAMILY = "targets"


@dataclass(frozen=True)
class Target:
    """A model and a prompt: known tokens by position."""

    name: str
    model: TabularAnySubset
    prompt: dict[int, int]

    @property
    def length(self) -> int:
        return self.model.length

    def start(self, rows: int) -> Infilling:
        tokens = torch.full((rows, self.model.length), self.model.mask)
        for position, token in self.prompt.items():
            tokens[:, position] = token
        return infilling(tokens, tokens != self.model.mask, self.model.mask, self.model.vocab)

    @cached_property
    def law(self) -> np.ndarray:
        """Of the missing tokens, first rank most significant; no token of it is impossible."""
        return joint_law(self.model, self.start(1))

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> np.ndarray:
        """Codes [n] of n filled rows."""
        key = row_key(seed, self.name)

        def one(rows: range) -> np.ndarray:
            start, noise = self.start(len(rows)), counted_noise(key, rows)
            done = record(self.model, start, decoder(self.model, start, noise=noise, **options))
            return codes(self.model, start, done.tokens)

        return in_chunks(self.name, one, n, threads)

    def rows_of(self, drawn: np.ndarray, layer: str, seed: int, draws: int) -> list[Row]:
        missing = self.model.length - len(self.prompt)
        return code_rows(layer, self.name, drawn, self.law, self.model.words, missing, seed=seed, draws=draws)


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
    result = []
    for name, (table, vocab, length, prompt) in MAKES.items():
        generator = torch.Generator().manual_seed(row_key(0, name) % 2**63)
        result.append(Target(name, TabularAnySubset(table(vocab, length, generator)), prompt))
    return result
