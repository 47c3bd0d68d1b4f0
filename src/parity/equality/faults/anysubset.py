"""Faults planted in any-subset decoders: their verification, their noise or the laws they see are exchanged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from parity_certify.result_rows import Row
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.assd_ngram import assd_ngram
from parity_decoders.anysubset.diffusion import diffusion
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.anysubset.sigma_gpt import sigma_gpt
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import Infilling, invert_order
from parity_decoders.steps import Fill
from parity_decoders.verification import Verified, finish, race, verify
from torch import Tensor

from parity.equality.exact import over_targets
from parity.equality.faults import (
    FAR,
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
from parity.equality.targets.anysubset import Target, long_targets, targets

ON = ("random 3x5", "consistent 3x4")  # on consistent 3x5 the least of the faults is a TV of .009, below what n finds
NEEDED = 10_000  # sequences with which every fault is found
LENGTH = 64  # words of the long models at K, but for "far"
AGAIN, LATE = 20, 32  # the rank from which acceptance uniforms are used again, and all noise
SIGHT = 8  # places that a short-sighted decoder sees


def residual_p(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """`verify` that resamples from the target instead of the residual."""
    at = draft[..., None]
    accepted = u * p.gather(-1, at)[..., 0] < q.gather(-1, at)[..., 0]
    return finish(q, torch.zeros_like(p), draft, point, accepted, race(q, exponential), exponential)


def no_resampling(q: Tensor, p: Tensor, draft: Tensor, *more: Any) -> Verified:
    """`verify` that keeps the draft it has just rejected."""
    return Verified(draft, verify(q, p, draft, *more).kept)


def with_verify(faulty: Callable[..., Verified]) -> Decoder:
    return altered("parity_decoders.anysubset.assd", verify=faulty).assd


def with_laws(decoder: Decoder, laws: Callable[..., Tensor]) -> Decoder:
    """The decoder with laws(model, tokens, order, begin, ranks, seen) in the place of the model's."""
    return with_model(decoder, lambda model: Overridden(model, "laws", laws))


def sees_drafts(model: Any, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
    """The joint density of drafts is also conditioned on the drafts behind."""
    joint = (ranks == seen).all(1, keepdim=True)
    return model.laws(tokens, order, begin, ranks, torch.where(joint, seen.amax(1, keepdim=True) + 1, seen))


def short_sighted(
    model: Any, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor, *, right: bool
) -> Tensor:
    """Laws that ignore words further away than SIGHT places, or (not `right`) all words to the right."""
    at = order.gather(1, ranks.clamp(max=tokens.shape[1] - 1))
    away = torch.arange(tokens.shape[1]) - at[..., None]
    in_sight = (away.abs() <= SIGHT) if right else (away < 0)
    known = (invert_order(order)[:, None] < seen[..., None]) & in_sight
    line = torch.where(known, tokens[:, None], model.mask)
    law = model.rule.laws_given(line.flatten(0, 1), at.flatten()).unflatten(0, ranks.shape)
    return torch.cat([law, law.new_zeros(*law.shape[:2], 1)], -1)


def everywhere(ranks: Tensor, begin: Tensor) -> Tensor:
    return ranks >= 0


def flatten_laws(decoder: Decoder, share: float, where: Callable[[Tensor, Tensor], Tensor] = everywhere) -> Decoder:
    """Laws are mixed with the uniform law over possible words, by a share, where(ranks [B, S], begin [B]) holds."""

    def laws(model: Any, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        p = model.laws(tokens, order, begin, ranks, seen)
        can = p > 0
        flat = (1 - share) * p + share * can / can.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(where(ranks, begin)[..., None], flat, p)

    return with_laws(decoder, laws)


def reused_from(rank: int) -> Callable[[Tensor], Tensor]:
    """Loops that begin at `rank` or later reuse the numbers of the loop that begins at `rank`."""

    def index(own: Tensor) -> Tensor:
        begin, slot = own // LENGTH, own % LENGTH - own // LENGTH
        return torch.where((begin >= rank) & (slot >= 0), rank * LENGTH + rank + slot, own)

    return index


def backwards(model: Any, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Words are filled in from right to left."""
    rank = torch.arange(start.order.shape[1])
    free = (rank >= start.begin[:, None]) & (rank < start.end[:, None])
    turned = torch.where(free, (start.begin + start.end)[:, None] - 1 - rank, rank)
    return sequential(model, start._replace(order=start.order.gather(1, turned)), noise=noise)


VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    "sequential": (sequential, "none"),
    "assd": (partial(assd, k=3), "none"),
    "assd: accept +0.05": (partial(assd, k=3, tolerance=0.05), "accept +0.05"),
    "assd: all accepted": (partial(diffusion, steps=1), "parallel"),
    "assd: residual p": (partial(with_verify(residual_p), k=3), "residual p"),
    "assd: no resampling": (partial(with_verify(no_resampling), k=3), "no resampling"),
    "assd: shared uniform": (
        partial(renumbered(assd, lambda index: index[:, :1].expand_as(index), only="accept"), k=3), "shared uniform"
    ),
    "assd: draft kept as condition": (partial(with_laws(assd, sees_drafts), k=3), "draft kept as condition"),
    "sigma_gpt": (sigma_gpt, "no resampling, any order"),
}  # fmt: skip

K = {"k": 5}
CORRECT = {"sequential": (sequential, {}), "assd": (assd, K), "assd_ngram": (assd_ngram, K)}
LONG: Faulty = {
    "assd: late reuse": (renumbered(assd, reused_from(LATE)), f"noise used again from rank {LATE} on", "chain"),
    "assd: accept reuse": (
        renumbered(assd, reused_from(AGAIN), only="accept"), f"acceptance uniforms again from rank {AGAIN} on", "chain"
    ),
    "assd: beyond 128": (
        flatten_laws(assd, 0.2, lambda ranks, _: ranks >= FAR), f"laws flatter from rank {FAR} on", "far"
    ),
    "sequential: twins of 9 to 64": (
        with_noise(sequential, twins_between), "rows share their noise in batches of 9 to 64", "chain"
    ),
    "assd: last": (flatten_laws(assd, 0.6, lambda ranks, _: ranks == LENGTH - 1), "last word's law flatter", "copy"),
    "assd: beyond 32": (
        flatten_laws(assd, 0.15, lambda ranks, _: ranks >= LATE), f"laws flatter from rank {LATE} on", "hidden"
    ),
    "assd: other prompts": (  # of rows whose prompts are longer than the batch's shortest
        flatten_laws(assd, 0.1, lambda _, begin: (begin > begin.min())[:, None]), "laws flatter where prompts differ",
        "hidden",
    ),
    "assd: alone": (in_small(assd, flatten_laws(assd, 0.3), 1), "laws flatter when alone in the batch", "chain"),
    "assd_ngram: small batch": (
        in_small(assd_ngram, flatten_laws(assd_ngram, 0.3), 3), "laws flatter in batches of three or fewer", "chain"
    ),
    "assd: short-sighted": (
        with_laws(assd, partial(short_sighted, right=True)), f"words beyond {SIGHT} places unseen", "copy"
    ),
    "assd: no right": (with_laws(assd, partial(short_sighted, right=False)), "words to the right unseen", "chain"),
    "assd: no resampling": (with_verify(no_resampling), "no resampling", "parity"),
    "sequential: backwards": (backwards, "order from right to left", "sharpened"),
    "sequential: twins": (with_noise(sequential, twins), "rows share their noise", "hidden"),
}  # fmt: skip


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant on an inconsistent and on a consistent target."""

    def sample(decoder: Decoder, target: Target, seed: int) -> list[Row]:
        drawn = target.draw(decoder, n, seed, {}, threads)
        return over_targets(target.rows_of(drawn, "any-order", seed, draws))

    chosen = [t for t in targets() if t.name in ON]
    for (method, (decoder, fault)), target in itertools.product(VARIANTS.items(), chosen):
        yield Trial(method, fault, partial(sample, decoder, target), n >= NEEDED)


def long_trials(n: int) -> Iterator[Trial]:
    yield from trials_on_long("anysubset", CORRECT, LONG, long_targets, n)
