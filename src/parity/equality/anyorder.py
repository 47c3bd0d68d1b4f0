"""Layers 1 and 5b for any-subset decoders: on models whose law can be written down, and with planted faults.

    exact(decoder, options, n=100_000, seeds=[0, 1]) -> rows    one decoder of `parity.anysubset.decoders` on every target
    anyorder(n=20_000, seeds=[0, 1]) -> rows                    sequential and assd, and assd with a fault each

The law is that of the lattice order (Guo & Ermon 2025, Eq. 4). On the "random" targets, as on a network, another order is another law;
on the "consistent" ones every order has the same, so what is rejected there is rejected for its arithmetic alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from parity.base.noise import Noise, counted_noise, row_key
from parity.decode.anysubset import fill
from parity.decoders.anysubset import assd as assd_module
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.diffusion import diffusion
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.anysubset.sigma_gpt import sigma_gpt
from parity.decoders.steps import Fill
from parity.decoders.verification import Verified, finish, race, verify
from parity.equality import counts as discrete
from parity.equality import rows as R
from parity.equality.rows import Row
from parity.models.anysubset.protocol import Infilling, infilling
from parity.models.anysubset.tabular import TabularAnySubset, codes, consistent_table, joint_law, random_table

Decoder = Callable[..., Iterator[Fill]]
CHUNK = 8192


class Target(NamedTuple):
    """A model and a prompt: known tokens by position."""

    name: str
    model: TabularAnySubset
    prompt: dict[int, int]

    def start(self, rows: int) -> Infilling:
        tokens = torch.full((rows, self.model.length), self.model.mask)
        for position, token in self.prompt.items():
            tokens[:, position] = token
        return infilling(tokens, tokens != self.model.mask, self.model.mask, self.model.vocab)


def flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws that depend on the position alone: drafts are always right, p == q."""
    return (1.5 * torch.randn(1, length, vocab, generator=generator, dtype=torch.float64)).expand(
        (vocab + 1) ** length, -1, -1
    )


KINDS: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], int, int, dict[int, int]]] = {
    "random 3x5": (random_table, 3, 5, {2: 1}),
    "random 2x6": (random_table, 2, 6, {0: 1, 4: 0}),
    "sharp 3x4": (partial(random_table, scale=4.0), 3, 4, {3: 2}),
    "consistent 3x5": (consistent_table, 3, 5, {1: 0}),
    "consistent 3x4": (consistent_table, 3, 4, {0: 2}),
    "flat 3x4": (flat_table, 3, 4, {1: 1}),
}


def targets(names: Sequence[str] = tuple(KINDS)) -> list[Target]:
    found = []
    for name in names:
        table, vocab, length, prompt = KINDS[name]
        generator = torch.Generator().manual_seed(row_key(0, name) % 2**63)
        found.append(Target(name, TabularAnySubset(table(vocab, length, generator)), prompt))
    return found


def draw(decoder: Decoder, target: Target, n: int, seed: int, options: dict[str, Any]) -> np.ndarray:
    """Numbers [n] of n filled rows, as `joint_law` counts them; ValueError for an open position or a token outside the vocabulary."""
    key = row_key(seed, target.name)
    found = []
    for first in range(0, n, CHUNK):
        start = target.start(min(CHUNK, n - first))
        noise = counted_noise(key, range(first, first + len(start.tokens)))
        found.append(
            codes(target.model, start, fill(start, decoder(target.model, start, noise=noise, **options)).tokens)
        )
    return np.concatenate(found)


def exact(
    decoder: Decoder,
    options: dict[str, Any] | None = None,
    *,
    layer: str = "exact",
    method: str = "",
    key: str = "",
    n: int = 100_000,
    names: Sequence[str] = tuple(KINDS),
    seeds: Sequence[int] = (0, 1),
    draws: int = 1999,
) -> list[Row]:
    """Rows of one decoder on every target, Holm over them; what the first seed rejects is repeated on the second."""

    def run(target: Target, seed: int, repeat: int) -> list[Row]:
        law = joint_law(target.model, target.start(1))
        counts = np.bincount(draw(decoder, target, n, seed, options or {}), minlength=len(law))
        length = target.model.length - len(target.prompt)
        place = {"model": target.name, "method": method, "key": key, "seed": seed, "repeat": repeat}
        rng = np.random.default_rng([seed, row_key(seed, target.name) % 2**32])
        return discrete.joint_rows(layer, counts, law, target.model.words, length, rng=rng, draws=draws, **place)

    chosen = targets(names)
    found = [r for target in chosen for r in run(target, seeds[0], 0)]
    for test in (*discrete.TESTS, "all four", "e-value"):
        R.family(r for r in found if r["test"] == test)
    failed = {r["model"] for r in found if r["test"] == "all four" and r["verdict"] == "rejected"}
    again = [r for seed in seeds[1:2] for target in chosen if target.name in failed for r in run(target, seed, 1)]
    for test in (*discrete.TESTS, "all four", "e-value"):
        R.family(r for r in again if r["test"] == test)
    return found + again


class SharedUniform(Noise):
    """One acceptance number for the whole block."""

    def uniform(self, use: str, index: Tensor) -> Tensor:
        return super().uniform(use, index[:, :1]).expand(index.shape)


class SeesAll(TabularAnySubset):
    """A joint density whose conditions also hold the drafts behind."""

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        joint = (ranks == seen).all(1, keepdim=True)
        return super().laws(tokens, order, begin, ranks, torch.where(joint, seen.amax(1, keepdim=True) + 1, seen))


def residual_p(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """`verify` that resamples from the target instead of the residual."""
    at = draft[..., None]
    accepted = u * p.gather(-1, at)[..., 0] < q.gather(-1, at)[..., 0]
    return finish(q, torch.zeros_like(p), draft, point, accepted, race(q, exponential), exponential)


def no_resampling(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """`verify` that keeps the draft it has just rejected."""
    return Verified(draft, verify(q, p, draft, point, u, exponential, tolerance).kept)


def with_verify(
    faulty: Callable[..., Verified], model: TabularAnySubset, start: Infilling, *, noise: Noise, **options: Any
) -> Iterator[Fill]:
    with patch.object(assd_module, "verify", faulty):
        yield from assd(model, start, noise=noise, **options)


def with_noise(model: TabularAnySubset, start: Infilling, *, noise: Noise, **options: Any) -> Iterator[Fill]:
    return assd(model, start, noise=SharedUniform(noise.keys, noise.dtype), **options)


def with_sight(model: TabularAnySubset, start: Infilling, *, noise: Noise, **options: Any) -> Iterator[Fill]:
    faulty = SeesAll.__new__(SeesAll)
    faulty.__dict__ = model.__dict__
    return assd(faulty, start, noise=noise, **options)


VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    "sequential": (sequential, "none"),
    "assd": (partial(assd, k=3), "none"),
    "assd: accept +0.05": (partial(assd, k=3, tolerance=0.05), "accept +0.05"),
    "assd: all accepted": (partial(diffusion, steps=1), "parallel"),
    "assd: residual p": (partial(with_verify, residual_p, k=3), "residual p"),
    "assd: no resampling": (partial(with_verify, no_resampling, k=3), "no resampling"),
    "assd: shared uniform": (partial(with_noise, k=3), "shared uniform"),
    "assd: draft kept as condition": (partial(with_sight, k=3), "draft kept as condition"),
    "sigma_gpt": (sigma_gpt, "no resampling, any order"),
}


def anyorder(n: int = 20_000, seeds: Sequence[int] = (0, 1), draws: int = 1999) -> list[Row]:
    """Rows of every variant on an inconsistent and a consistent target. as_required as in the mutants' layer."""
    found = []
    for method, (decoder, fault) in VARIANTS.items():
        for name in ("random 3x5", "consistent 3x5"):
            rows = []
            for repeat, seed in enumerate(seeds):
                one = exact(
                    decoder, layer="any-order", method=method, key=fault, n=n, names=[name], seeds=[seed], draws=draws
                )
                rows += [r | {"repeat": repeat} for r in one]
            detected = [r["p_value"] is not None and r["p_value"] <= R.ALPHA for r in rows if r["test"] == "all four"]
            required = not all(detected) if fault == "none" else all(detected)
            found += [r | {"as_required": required} if r["test"] == "all four" else r for r in rows]
    return found
