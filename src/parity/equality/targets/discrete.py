"""Targets of discrete decoders: tables of (V, L) = (2, 4), (3, 4) and (3, 5), conditionals of the whole prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import digits
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.noise import Noise
from parity.decode.discrete import record
from parity.equality.targets import Decoder, EnumeratedTarget, generator_of
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled, TokenSampling
from parity.models.discrete.tabular import TabularModel, random_table

DRAWS = 9999
FAMILY = "targets"
PLAIN = TokenSampling()
SHAPES = ((2, 4), (3, 4), (3, 5))
SMALL = ("random-0 3x5", "disjoint 3x4", "one-hot 2x4", "top-k 3x5", "forced 3x4", "guided 3x5")


@dataclass(frozen=True)
class Target(EnumeratedTarget):
    """An enumerable target: `table` and how it is sampled."""

    name: str
    table: Tensor  # [N, V] or [2, N, V] logits, float64
    length: int
    width: int
    forced: Tensor | None = None  # [L]
    sampling: TokenSampling = PLAIN

    @cached_property
    def vocab(self) -> int:
        return self.table.shape[-1]

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


def law_of(name: str, model: TokenModel, cells: Tensor) -> np.ndarray:
    """The probabilities [K], float64, that a model of K rows gives to sequences cells [K, L]; ParityError if one of the
    conditionals that they reach is not a law."""
    inputs = torch.cat([torch.zeros(len(cells), 1, dtype=torch.int64), cells[:, :-1]], 1)
    positions = torch.arange(-1, model.length - 1).expand(len(cells), -1)
    p = model.logits(inputs, positions).double().softmax(-1)
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
