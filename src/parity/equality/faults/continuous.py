"""A correct speculative sampler of Gaussian mixtures, and its faults; and faults in the decoders that couple steps.

Of the latter, `spec_head` and `coupled` as they are shipped, with one name they read replaced.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from parity_certify.result_rows import Row
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.continuous import coupled, spec_head
from parity.decoders.coupling import Coupled, Gaussian, log_ratio
from parity.decoders.verification import run
from parity.equality.faults import Trial, altered
from parity.equality.targets import Decoder
from parity.equality.targets import continuous as walked
from parity.equality.targets.continuous import continuous_rows
from parity.models.continuous.tabular import Mixture, exact_sampler, random_mixture

Fault = Literal[
    "none", "residual p", "accept +0.05", "shared uniform", "draft temperature", "bonus from q", "square-root ratio",
    "never rejects",
]  # fmt: skip


def speculative(
    model: Mixture, rows: int, rng: np.random.Generator, *, block: int = 2, draft_seed: int = 1, fault: Fault = "none"
) -> np.ndarray:
    """Speculative sampling with densities, [rows, L, D]: accept a draft with probability min(1, p/q), else draw from
    the residual max(0, p - q) by rejection from p. A run of `block` accepted drafts is followed by one token from p.

    The faults: the residual replaced by p, as continuous decoders do for want of a sampler; 0.05 added to the
    acceptance; one uniform for the block; drafts at 0.8 of the scale that q records; the bonus token from q;
    acceptance by sqrt(p/q); all drafts kept.
    """
    K, L, D = model.means.shape
    draft = random_mixture(np.random.default_rng(draft_seed), K, L, D)
    x, run, u = np.empty((rows, 0, D)), np.zeros(rows, int), rng.random(rows)
    for _ in range(L):
        y = draft.draw(x, rng, 0.8 if fault == "draft temperature" else 1.0)
        p, q = model.density(x, y), draft.density(x, y)
        fresh = rng.random(rows)
        u = np.where(run > 0, u, fresh) if fault == "shared uniform" else fresh
        ratio = np.sqrt(p / q) if fault == "square-root ratio" else p / q
        accepted = (u < ratio + (0.05 if fault == "accept +0.05" else 0.0)) | (fault == "never rejects")
        bonus = run == block
        token = np.where(accepted[:, None], y, np.nan)
        token[bonus] = (draft if fault == "bonus from q" else model).draw(x[bonus], rng)
        waiting = np.flatnonzero(~accepted & ~bonus)
        while len(waiting):
            z = model.draw(x[waiting], rng)
            p, q = model.density(x[waiting], z), draft.density(x[waiting], z)
            keep = (rng.random(len(waiting)) * p < p - q) | (fault == "residual p")
            token[waiting[keep]] = z[keep]
            waiting = waiting[~keep]
        run = np.where(accepted & ~bonus, run + 1, 0)
        x = np.concatenate([x, token[:, None]], 1)
    return x


Walks = coupled.Walks
inverted = altered("parity.decoders.coupling", log_ratio=lambda n, ratio: log_ratio(n, 1 / ratio)).coupled


def redrawn(x: Tensor, q: Gaussian, p: Gaussian, noise: Noise, index: Tensor) -> Coupled:
    """Kept with min(1, p / q), else a fresh draw of p: not of the residual."""
    laws = [torch.distributions.Normal(mean, std) for mean, std in (p, q)]
    kept = noise.uniform("accept", index).log() < (laws[0].log_prob(x) - laws[1].log_prob(x)).sum(-1)
    fresh = p[0] + p[1] * noise.normal("retry", index, x.shape[-1])
    return Coupled(torch.where(kept[..., None], x, fresh), kept)


def peeking(walks: Walks, chain: object, noise: Noise, index: Tensor, theta: float | None, eps: float) -> Walks:
    """Steps are coupled where the token that they lead to, a later coordinate, is above 0."""
    peeked = torch.where(walks.x[:, -1, 0] > 0, 10.0, -1.0)
    return coupled.swept(walks, chain, noise, index, peeked, eps)  # type: ignore[arg-type]


def early(walks: Walks, *given: object) -> Walks:
    """All steps count as verified after a sweep."""
    swept = coupled.swept(walks, *given)  # type: ignore[arg-type]
    return swept._replace(verified=torch.full_like(swept.verified, walks.x.shape[1]))


HEAD, JACOBI = "parity.decoders.continuous.spec_head", "parity.decoders.continuous.coupled"
NEEDED = 5000  # samples with which every fault is found
WALKED: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    "spec_head": (partial(spec_head.spec_head, ahead=3), "none"),
    "spec_head: redrawn": (partial(altered(HEAD, coupled=redrawn).spec_head, ahead=3), "residual a fresh draw"),
    "spec_head: inverted": (partial(altered(HEAD, coupled=inverted).spec_head, ahead=3), "keep with wrong deviation"),
    "spec_head: one more": (partial(altered(HEAD, run=lambda k: run(k) + 1).spec_head, ahead=3), "unverified kept"),
    "coupled": (coupled.coupled, "none"),
    "coupled: redrawn": (partial(altered(JACOBI, couple=redrawn).coupled, theta=1.0), "residual a fresh draw"),
    "coupled: inverted": (partial(altered(JACOBI, couple=inverted).coupled, theta=1.0), "keep with wrong deviation"),
    "coupled: peeking": (altered(JACOBI, swept=peeking).coupled, "looks at a later coordinate"),
    "coupled: early": (partial(altered(JACOBI, swept=early).coupled, sweeps=1), "final a round early"),
}

VARIANTS: dict[str, tuple[Callable[..., np.ndarray], str]] = {  # the sampler, and its fault
    "exact sampling": (exact_sampler, "none"),
    **{f"speculative: {f}": (partial(speculative, fault=f), f) for f in get_args(Fault)},
}


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant on a mixture of three tokens of one number, and of two; those that couple steps on their walks."""

    def sample(decoder: Callable[..., np.ndarray], D: int, bins: int, seed: int) -> list[Row]:
        model, rng = random_mixture(np.random.default_rng(0), 3, 3, D), np.random.default_rng([seed, D])
        drawn, name = decoder(model, n, rng), f"mixture 3 x {D}-D"
        return continuous_rows(drawn, model, rng=rng, model_name=name, bins=bins, draws=draws)

    for (D, bins), (method, (decoder, fault)) in itertools.product(((1, 4), (2, 2)), VARIANTS.items()):
        yield Trial(method, fault, partial(sample, decoder, D, bins), n >= NEEDED)

    def walk(target: walked.Target, decoder: Decoder, seed: int) -> list[Row]:
        return target.rows_of(target.draw(decoder, n, seed, {}), "continuous", seed, draws)

    for target, (method, (decoder, fault)) in itertools.product(walked.targets("walks"), WALKED.items()):
        yield Trial(method, fault, partial(walk, target, decoder), n >= NEEDED)
