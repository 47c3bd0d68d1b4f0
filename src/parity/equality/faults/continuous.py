"""A correct speculative sampler of Gaussian mixtures with its faults, and faults planted in the shipped decoders: one
name that they read, their noise or the laws they see are exchanged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row
from parity_decoders.continuous import coupled, spec_head
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.coupling import Coupled, Gaussian, log_ratio
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import Pair, Start
from parity_decoders.steps import Draw
from parity_decoders.verification import count_leading
from torch import Tensor

from parity.equality.faults import (
    FAR,
    Correct,
    Faulty,
    Overridden,
    Trial,
    altered,
    in_small,
    renumbered,
    trials_on_long,
    twins,
    twins_between,
    with_model,
    with_noise,
)
from parity.equality.targets import Decoder
from parity.equality.targets.continuous import Target, continuous_rows, long_targets, targets
from parity.models.continuous.tabular import Mixture, MixtureLaw, exact_sampler, random_mixture

NEEDED = 5000  # samples with which every fault is found
LATE, SIGHT = 32, 8  # the place from which noise is used again; places that a short-sighted decoder sees
FAULTS = (
    "none", "residual p", "accept +0.05", "shared uniform", "draft temperature", "bonus from q", "square-root ratio",
    "never rejects",
)  # fmt: skip


def speculative(model: Mixture, rows: int, rng: np.random.Generator, *, fault: str = "none") -> np.ndarray:
    """Speculative sampling with densities, [rows, L, D]: accept a draft with probability min(1, p/q), else draw from
    the residual max(0, p - q) by rejection from p. A run of two accepted drafts is followed by one token from p.

    The faults: the residual replaced by p, as continuous decoders do for want of a sampler; 0.05 added to the
    acceptance; one uniform for the block; drafts at 0.8 of the scale that q records; the bonus token from q;
    acceptance by sqrt(p/q); all drafts kept.
    """
    K, L, D = model.means.shape
    draft = random_mixture(np.random.default_rng(1), K, L, D)
    x, run, u = np.empty((rows, 0, D)), np.zeros(rows, int), rng.random(rows)
    for _ in range(L):
        y = draft.draw(x, rng, 0.8 if fault == "draft temperature" else 1.0)
        p, q = model.density(x, y), draft.density(x, y)
        fresh = rng.random(rows)
        u = np.where(run > 0, u, fresh) if fault == "shared uniform" else fresh
        ratio = np.sqrt(p / q) if fault == "square-root ratio" else p / q
        accepted = (u < ratio + (0.05 if fault == "accept +0.05" else 0.0)) | (fault == "never rejects")
        bonus = run == 2
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


inverted = altered("parity_decoders.coupling", log_ratio=lambda n, ratio: log_ratio(n, 1 / ratio)).couple


def redrawn(x: Tensor, q: Gaussian, p: Gaussian, noise: Noise, index: Tensor) -> Coupled:
    """Keeps x with probability min(1, p / q), else draws from p instead of the residual."""
    laws = [torch.distributions.Normal(mean, std) for mean, std in (p, q)]
    kept = noise.uniform("accept", index).log() < (laws[0].log_prob(x) - laws[1].log_prob(x)).sum(-1)
    fresh = p[0] + p[1] * noise.normal("retry", index, x.shape[-1])
    return Coupled(torch.where(kept[..., None], x, fresh), kept)


def peeking(
    walks: coupled.Walks, chain: Any, noise: Noise, index: Tensor, theta: float | None, eps: float
) -> coupled.Walks:
    """Steps are coupled where the token that they lead to, a later coordinate, is above 0."""
    above = walks.x[:, -1, 0] > 0
    both = (coupled.sweep(walks, chain, noise, index, peeked, eps) for peeked in (10.0, -1.0))
    return coupled.Walks(*(torch.where(above.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(*both, strict=True)))


def early(walks: coupled.Walks, *more: Any) -> coupled.Walks:
    """All steps count as verified after a sweep."""
    swept = coupled.sweep(walks, *more)
    return swept._replace(verified=torch.full_like(swept.verified, walks.x.shape[1]))


def everywhere(places: Tensor) -> Tensor:
    return places >= 0


def widen_laws(decoder: Decoder, factor: float, where: Callable[[Tensor], Tensor] = everywhere) -> Decoder:
    """The target's scales are multiplied by a factor where(places [B, n]) holds."""

    def conditions(model: Any, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> MixtureLaw:
        law = model.conditions(tokens, order, places, known)
        wide = where(places).expand_as(places).flatten()[:, None, None]
        return law._replace(scales=torch.where(wide, factor * law.scales, law.scales))

    return with_conditions(decoder, conditions)


def with_conditions(decoder: Decoder, conditions: Callable[..., MixtureLaw]) -> Decoder:
    """The decoder with conditions(model, tokens, order, places, known) in the place of the target's."""
    return with_model(decoder, lambda pair: pair._replace(target=Overridden(pair.target, "conditions", conditions)))


def short_sighted(model: Any, *asked: Tensor) -> MixtureLaw:
    """Laws that ignore tokens further away than SIGHT places; in the copying model all that matter are."""
    law = model.conditions(*asked)
    return law._replace(means=0 * law.means, scales=torch.ones_like(law.scales))


def reused(index: Tensor) -> Tensor:
    """Every second place from LATE on has the numbers of the one before (two a place: a walk of one step)."""
    return torch.where((index >= 2 * LATE) & (index // 2 % 2 == 1), index - 2, index)


def lost(models: Pair, start: Start, *, noise: Noise, **options: Any) -> Iterator[Draw]:
    """One token in a thousand is written five off."""
    for place, drawn in enumerate(mar(models, start, noise=noise)):
        u = noise.uniform("branch", torch.full_like(start.order[:, :1], place))
        yield drawn._replace(tokens=drawn.tokens + 5.0 * (u < 0.001)[..., None])


def fresh(p: Any, q: Any, log_sigma: Tensor, noise: Noise, places: Tensor, dim: int, *more: Any) -> Any:
    """Replaces a rejected draft by a draw from the target instead of the residual."""
    x = p.propose(lambda i: noise.normal("retry", 2 * places[:, None] + i, dim).flatten(0, 1))
    return x, torch.ones_like(places), torch.zeros_like(places) > 0


VARIANTS: dict[str, tuple[Callable[..., np.ndarray], str]] = {  # the sampler, and its fault
    "exact sampling": (exact_sampler, "none"),
    **{f"speculative: {fault}": (partial(speculative, fault=fault), fault) for fault in FAULTS},
}
CSPD, HEAD, JACOBI = (f"parity_decoders.continuous.{name}" for name in ("cspd", "spec_head", "coupled"))
WALKED: dict[str, tuple[Decoder, str]] = {  # decoders that couple the steps of a walk
    "spec_head": (partial(spec_head.spec_head, ahead=3), "none"),
    "spec_head: redrawn": (partial(altered(HEAD, couple=redrawn).spec_head, ahead=3), "residual a fresh draw"),
    "spec_head: inverted": (partial(altered(HEAD, couple=inverted).spec_head, ahead=3), "keep with wrong deviation"),
    "spec_head: one more": (
        partial(altered(HEAD, count_leading=lambda k: count_leading(k) + 1).spec_head, ahead=3),
        "unverified kept",
    ),
    "coupled": (coupled.coupled, "none"),
    "coupled: of drafts": (partial(coupled.coupled, reads="drafts"), "none"),
    "coupled: redrawn": (partial(altered(JACOBI, couple=redrawn).coupled, theta=3.0), "residual a fresh draw"),
    "coupled: inverted": (partial(altered(JACOBI, couple=inverted).coupled, theta=1.0), "keep with wrong deviation"),
    "coupled: peeking": (altered(JACOBI, sweep=peeking).coupled, "looks at a later coordinate"),
    "coupled: one more": (altered(JACOBI, count_leading=lambda k: count_leading(k) + 1).coupled, "unverified kept"),
    "coupled: early": (partial(altered(JACOBI, sweep=early).coupled, sweeps=1), "final a round early"),
}
CORRECT: Correct = {"mar": (mar, {}), "cspd": (cspd, {"gamma": 4})}
LONG: Faulty = {
    "mar: late reuse": (renumbered(mar, reused), f"noise used again from place {LATE} on", "regimes"),
    "cspd: last": (widen_laws(cspd, 1.5, lambda places: places == 63), "last token's law wider", "regimes"),
    "cspd: beyond 32": (
        widen_laws(cspd, 1.08, lambda places: places >= LATE), f"laws wider from place {LATE} on", "turning"
    ),
    "cspd: beyond 128": (
        widen_laws(cspd, 1.15, lambda places: places >= FAR), f"laws wider from place {FAR} on", "far"
    ),
    "mar: twins of 9 to 64": (
        with_noise(mar, twins_between), "rows share their noise in batches of 9 to 64", "regimes"
    ),
    "cspd: ahead": (  # of rows that are ahead of the slowest
        widen_laws(cspd, 1.08, lambda places: places[:, :1] > places[:, :1].min()),
        "laws wider where rows differ in place", "turning",
    ),
    "cspd: alone": (in_small(cspd, widen_laws(cspd, 1.3), 1), "laws wider when alone in the batch", "regimes"),
    "mar: small batch": (in_small(mar, widen_laws(mar, 1.3), 3), "laws wider in batches of three or fewer", "regimes"),
    "cspd: short-sighted": (with_conditions(cspd, short_sighted), f"tokens beyond {SIGHT} places unseen", "copy"),
    "cspd: redrawn": (altered(CSPD, sample_residual=fresh).cspd, "residual a fresh draw", "turning"),
    "mar: lost": (lost, "a token in 1,000 five off", "regimes"),
    "mar: twins": (with_noise(mar, twins), "rows share their noise", "regimes"),
}  # fmt: skip


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Samplers on a mixture of three tokens of one number, and of two; decoders that couple steps on their walks."""

    def sample(sampler: Callable[..., np.ndarray], D: int, bins: int, seed: int) -> list[Row]:
        model, rng = random_mixture(np.random.default_rng(0), 3, 3, D), np.random.default_rng([seed, D])
        drawn, name = sampler(model, n, rng), f"mixture 3 x {D}-D"
        return continuous_rows(drawn, model, rng=rng, model_name=name, bins=bins, draws=draws)

    for (D, bins), (method, (sampler, fault)) in itertools.product(((1, 4), (2, 2)), VARIANTS.items()):
        yield Trial(method, fault, partial(sample, sampler, D, bins), n >= NEEDED)

    def walk(target: Target, decoder: Decoder, seed: int) -> list[Row]:
        return target.rows_of(target.draw(decoder, n, seed, {}), "continuous", seed, draws)

    for target, (method, (decoder, fault)) in itertools.product(targets("walks"), WALKED.items()):
        yield Trial(method, fault, partial(walk, target, decoder), n >= NEEDED)


def long_trials(n: int) -> Iterator[Trial]:
    yield from trials_on_long("continuous", CORRECT, LONG, long_targets, n)
