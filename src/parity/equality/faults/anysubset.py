"""Faults planted in the shipped any-subset decoder: its verification, its noise or its model is exchanged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from parity_certify.result_rows import Row
from torch import Tensor, where, zeros_like

from parity.base.noise import Noise
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.diffusion import diffusion
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.anysubset.sigma_gpt import sigma_gpt
from parity.decoders.verification import Verified, finish, race, verify
from parity.equality.exact import over_targets
from parity.equality.faults import Trial, altered, with_model, with_noise
from parity.equality.targets import Decoder
from parity.equality.targets.anysubset import Target, targets
from parity.models.anysubset.protocol import AnySubsetModel

ON = ("random 3x5", "consistent 3x4")  # on consistent 3x5 the least of the faults is a TV of .009, below what n finds
NEEDED = 10_000  # sequences with which every fault is found


class SharedUniform(Noise):
    """One acceptance number for the whole block."""

    def uniform(self, use: str, index: Tensor) -> Tensor:
        return super().uniform(use, index[:, :1]).expand(index.shape)


class SeesAll:
    """A model whose joint density has conditions that also hold the drafts behind."""

    def __init__(self, model: AnySubsetModel):
        self.model, self.vocab, self.mask = model, model.vocab, model.mask

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        joint = (ranks == seen).all(1, keepdim=True)
        return self.model.laws(tokens, order, begin, ranks, where(joint, seen.amax(1, keepdim=True) + 1, seen))


def residual_p(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """`verify` that resamples from the target instead of the residual."""
    at = draft[..., None]
    accepted = u * p.gather(-1, at)[..., 0] < q.gather(-1, at)[..., 0]
    return finish(q, zeros_like(p), draft, point, accepted, race(q, exponential), exponential)


def no_resampling(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """`verify` that keeps the draft it has just rejected."""
    return Verified(draft, verify(q, p, draft, point, u, exponential, tolerance).kept)


def with_verify(faulty: Callable[..., Verified]) -> Decoder:
    return altered("parity.decoders.anysubset.assd", verify=faulty).assd


SHARED = with_noise(assd, lambda noise: SharedUniform(noise.keys, noise.dtype))
VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    "sequential": (sequential, "none"),
    "assd": (partial(assd, k=3), "none"),
    "assd: accept +0.05": (partial(assd, k=3, tolerance=0.05), "accept +0.05"),
    "assd: all accepted": (partial(diffusion, steps=1), "parallel"),
    "assd: residual p": (partial(with_verify(residual_p), k=3), "residual p"),
    "assd: no resampling": (partial(with_verify(no_resampling), k=3), "no resampling"),
    "assd: shared uniform": (partial(SHARED, k=3), "shared uniform"),
    "assd: draft kept as condition": (partial(with_model(assd, SeesAll), k=3), "draft kept as condition"),
    "sigma_gpt": (sigma_gpt, "no resampling, any order"),
}


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant on an inconsistent and on a consistent target."""

    def sample(decoder: Decoder, target: Target, seed: int) -> list[Row]:
        drawn = target.draw(decoder, n, seed, {}, threads)
        return over_targets(target.rows_of(drawn, "any-order", seed, draws))

    chosen = [t for t in targets() if t.name in ON]
    for (method, (decoder, fault)), target in itertools.product(VARIANTS.items(), chosen):
        yield Trial(method, fault, partial(sample, decoder, target), n >= NEEDED)
