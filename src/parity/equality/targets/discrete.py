"""Targets of discrete decoders: tables of (V, L) = (2, 4), (3, 4) and (3, 5), conditionals of the whole prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import code_rows, digits
from parity_certify.result_rows import Row
from parity_certify.seeding import row_key
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.noise import counted_noise
from parity.decode.discrete import record
from parity.equality.targets import Decoder, in_chunks
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled, TokenSampling
from parity.models.discrete.tabular import TabularModel, random_table

DRAWS = 9999
FAMILY = "targets"
PLAIN = TokenSampling()
SHAPES = ((2, 4), (3, 4), (3, 5))
SMALL = ("random-0 3x5", "disjoint 3x4", "one-hot 2x4", "top-k 3x5", "forced 3x4", "guided 3x5")


@dataclass(frozen=True)
class Target:
    """An enumerable target: `table` and how it is sampled."""

    name: str
    table: Tensor  # [N, V] or [2, N, V] logits, float64
    length: int
    width: int
    forced: Tensor | None = None  # [L]
    sampling: TokenSampling = PLAIN

    @property
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

    def draw(
        self,
        decoder: Decoder,
        n: int,
        seed: int,
        options: dict[str, Any],
        threads: int = 1,
        strict: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> np.ndarray:
        """Codes [n] of n decoded sequences (first token most significant)."""
        weights = self.vocab ** torch.arange(self.length - 1, -1, -1)
        key = row_key(seed, self.name)

        def codes(rows: range) -> np.ndarray:
            model, start = self.model(len(rows), dtype), torch.zeros(len(rows), dtype=torch.int64)
            noise = counted_noise(key, rows, dtype)
            code = (record(model, start, decoder(model, start, noise=noise, **options)).tokens * weights).sum(1)
            if strict:
                check_support(self.law, self.vocab, self.length, code.numpy())
            return code.numpy()

        return in_chunks(self.name, codes, n, threads)

    def rows_of(self, drawn: np.ndarray, layer: str, seed: int, draws: int) -> list[Row]:
        return code_rows(layer, self.name, drawn, self.law, self.vocab, self.length, seed=seed, draws=draws)


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


def check_support(law: np.ndarray, vocab: int, length: int, code: np.ndarray) -> None:
    """ParityError that names row and position if a sequence of code [B] has a token of probability zero."""
    bad = np.flatnonzero(law[code] == 0)
    if len(bad):
        tokens = digits(vocab, length)[code[bad[0]]]
        joint = law.reshape([vocab] * length)
        position = next(i for i in range(length) if joint[tuple(tokens[: i + 1])].sum() == 0)
        what = f"token {tokens[position]} of probability zero was sampled"
        raise ParityError(f"row {bad[0]}, position {position}: {what}")


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
                generator = torch.Generator().manual_seed(row_key(seed, name) % 2**63)
                result.append(Target(name, table(V, L, generator), L, 2, forced_tokens(make, V, L), sampling))
    return result
