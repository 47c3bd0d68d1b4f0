"""Faults injected in the shipped decoders of vectors: one name that they read, their noise or the distributions they
see are exchanged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

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

from parity.equality.targets import Decoder
from parity.equality.targets.continuous import Target, long_targets, targets
from parity.models.continuous.tabular import MixtureDistribution
from tests.equality.faults import (
    FAR,
    Correct,
    Faulty,
    Overridden,
    Trial,
    change_model,
    change_noise,
    make_trials_on_long,
    patch_module,
    renumber,
    share_noise,
    share_noise_in_runs,
    swap_in_small,
)

NEEDED = 5000  # number of samples in which the tests must find each fault
LATE = 32  # rank from which late faults begin: noise read again, wider distributions
SIGHT = 8  # distance in positions beyond which a short-sighted decoder sees no tokens
Select = Callable[[Tensor], Tensor]  # says, bool by ranks [B, n], where a fault changes the distributions


couple_by_inverse = patch_module("parity_decoders.coupling", log_ratio=lambda n, ratio: log_ratio(n, 1 / ratio)).couple


def couple_without_residual(x: Tensor, q: Gaussian, p: Gaussian, noise: Noise, index: Tensor) -> Coupled:
    """Keep drafts x with probability min(1, p / q), else draw from p instead of the residual (a fault)."""
    target, draft = (torch.distributions.Normal(mean, std) for mean, std in (p, q))
    is_kept = noise.uniform("accept", index).log() < (target.log_prob(x) - draft.log_prob(x)).sum(-1)
    drawn = p[0] + p[1] * noise.normal("retry", index, x.shape[-1])
    return Coupled(torch.where(is_kept[..., None], x, drawn), is_kept)


def sweep_peeking(
    walks: coupled.Walks, chain: Any, noise: Noise, index: Tensor, theta: float | None, eps: float
) -> coupled.Walks:
    """Run a sweep of `coupled`, but couple only walks that lead to a token whose first number is above 0 (a fault)."""
    mask = walks.x[:, -1, 0] > 0
    swept = (coupled.sweep(walks, chain, noise, index, theta, eps) for theta in (10.0, -1.0))
    return coupled.Walks(*(torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(*swept, strict=True)))


def sweep_once(walks: coupled.Walks, *rest: Any) -> coupled.Walks:
    """Run a sweep of `coupled`, and count all steps of the walks as verified (a fault)."""
    swept = coupled.sweep(walks, *rest)
    return swept._replace(verified=torch.full_like(swept.verified, walks.x.shape[1]))


def count_one_more(holds: Tensor) -> Tensor:
    """Count the leading True of `holds`, plus one (a fault: one unverified draft is kept)."""
    return count_leading(holds) + 1


def widen(decoder: Decoder, factor: float, select: Select = lambda ranks: ranks >= 0) -> Decoder:
    """Make the decoder see a target whose scales are `factor` times wider where select(ranks [B, n]) holds."""

    def conditions(model: Any, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        distribution = model.conditions(tokens, order, ranks, n_known)
        is_wide = select(ranks).expand_as(ranks).flatten()[:, None, None]
        return distribution._replace(scales=torch.where(is_wide, factor * distribution.scales, distribution.scales))

    return replace_conditions(decoder, conditions)


def replace_conditions(decoder: Decoder, conditions: Callable[..., MixtureDistribution]) -> Decoder:
    """Make the decoder see conditions(model, tokens, order, ranks, n_known) in the place of the target's conditions."""
    return change_model(decoder, lambda pair: pair._replace(target=Overridden(pair.target, "conditions", conditions)))


def ignore_distant_tokens(model: Any, *arguments: Tensor) -> MixtureDistribution:
    """Compute distributions N(0, 1) whatever the tokens. So a decoder of the copying model behaves that sees no tokens
    more than SIGHT positions away, because none nearer matter there."""
    distribution = model.conditions(*arguments)
    return distribution._replace(means=0 * distribution.means, scales=torch.ones_like(distribution.scales))


def reuse_late_index(index: Tensor) -> Tensor:
    """Map noise indices, two a rank, so that from LATE on every second rank reads the numbers of the rank before."""
    return torch.where((index >= 2 * LATE) & (index // 2 % 2 == 1), index - 2, index)


def shift_rare_tokens(models: Pair, start: Start, *, noise: Noise, **options: Any) -> Iterator[Draw]:
    """Decode as `mar` does, but add 5.0 to the numbers of one token in a thousand (a fault)."""
    for rank, drawn in enumerate(mar(models, start, noise=noise)):
        u = noise.uniform("branch", torch.full_like(start.order[:, :1], rank))
        yield drawn._replace(tokens=drawn.tokens + 5.0 * (u < 0.001)[..., None])


def sample_target(p: Any, q: Any, log_sigma: Tensor, noise: Noise, ranks: Tensor, dim: int, *rest: Any) -> Any:
    """Replace `sample_residual` of cspd: draw from the target p instead of the residual (a fault). Returns the tokens,
    one try each, and that none gave up."""
    x = p.propose(lambda i: noise.normal("retry", 2 * ranks[:, None] + i, dim).flatten(0, 1))
    return x, torch.ones_like(ranks), torch.zeros_like(ranks) > 0


CSPD, HEAD, JACOBI = (f"parity_decoders.continuous.{name}" for name in ("cspd", "spec_head", "coupled"))
VARIANTS: dict[str, tuple[Decoder, str]] = {  # decoders that couple the steps of walks, and their faults, by name
    "spec_head": (partial(spec_head.spec_head, ahead=3), "none"),
    "spec_head: redrawn": (
        partial(patch_module(HEAD, couple=couple_without_residual).spec_head, ahead=3),
        "residual a fresh draw",
    ),
    "spec_head: inverted": (
        partial(patch_module(HEAD, couple=couple_by_inverse).spec_head, ahead=3),
        "keep with wrong deviation",
    ),
    "spec_head: one more": (
        partial(patch_module(HEAD, count_leading=count_one_more).spec_head, ahead=3),
        "unverified kept",
    ),
    "coupled": (coupled.coupled, "none"),
    "coupled: of drafts": (partial(coupled.coupled, reads="drafts"), "none"),
    "coupled: redrawn": (
        partial(patch_module(JACOBI, couple=couple_without_residual).coupled, theta=3.0),
        "residual a fresh draw",
    ),
    "coupled: inverted": (
        partial(patch_module(JACOBI, couple=couple_by_inverse).coupled, theta=1.0),
        "keep with wrong deviation",
    ),
    "coupled: peeking": (patch_module(JACOBI, sweep=sweep_peeking).coupled, "looks at a later coordinate"),
    "coupled: one more": (patch_module(JACOBI, count_leading=count_one_more).coupled, "unverified kept"),
    "coupled: early": (partial(patch_module(JACOBI, sweep=sweep_once).coupled, sweeps=1), "final a round early"),
}
CORRECT: Correct = {"mar": (mar, {}), "cspd": (cspd, {"gamma": 4})}
LONG: Faulty = {
    "mar: late reuse": (renumber(mar, reuse_late_index), f"noise used again from place {LATE} on", "regimes"),
    "cspd: beyond 128": (widen(cspd, 1.15, lambda ranks: ranks >= FAR), f"drawn wider from place {FAR} on", "far"),
    "mar: twins of 9 to 64": (
        change_noise(mar, share_noise_in_runs), "rows share their noise in batches of 9 to 64", "regimes"
    ),
    "cspd: ahead": (  # changes the rows that are ahead of the slowest of their batch
        widen(cspd, 1.08, lambda ranks: ranks[:, :1] > ranks[:, :1].min()),
        "drawn wider where rows differ in place", "turning",
    ),
    "cspd: alone": (swap_in_small(cspd, widen(cspd, 1.3), 1), "drawn wider when alone in the batch", "regimes"),
    "cspd: short-sighted": (
        replace_conditions(cspd, ignore_distant_tokens), f"tokens beyond {SIGHT} places unseen", "copy"
    ),
    "cspd: redrawn": (patch_module(CSPD, sample_residual=sample_target).cspd, "residual a fresh draw", "turning"),
    "mar: lost": (shift_rare_tokens, "a token in 1,000 five off", "regimes"),
    "mar: twins": (change_noise(mar, share_noise), "rows share their noise", "regimes"),
}  # fmt: skip


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield a trial of n samples for each decoder that couples steps, on the walks. draws: of the Monte-Carlo null;
    `seeds` and `threads` are not read here."""

    def walk(target: Target, decoder: Decoder, seed: int) -> list[Row]:
        return target.make_rows(target.draw(decoder, n, seed, {}), "continuous", seed, draws)

    for target, (method, (decoder, fault)) in itertools.product(targets("walks"), VARIANTS.items()):
        yield Trial(method, fault, partial(walk, target, decoder), n >= NEEDED)


def make_long_trials(n: int) -> Iterator[Trial]:
    """Yield a trial of about n tokens on long targets for each decoder of CORRECT and LONG."""
    yield from make_trials_on_long("continuous", CORRECT, LONG, long_targets, n)
