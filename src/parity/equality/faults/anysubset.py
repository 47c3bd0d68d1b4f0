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
from parity_decoders.verification import Verified, finish, probability, race, verify
from torch import Tensor

from parity.equality.exact import adjust_over_targets
from parity.equality.faults import (
    FAR,
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
from parity.equality.targets import Decoder
from parity.equality.targets.anysubset import Target, long_targets, targets

# On consistent 3x5 the smallest of the faults is a TV of .009, below what n finds.
ON = ("random 3x5", "consistent 3x4")
NEEDED = 10_000  # sequences with which every fault is found
LENGTH = 64  # words of the long models at k = 5, except "far"
AGAIN = 20  # the rank from which acceptance uniforms are used again
LATE = 32  # the rank from which all noise is used again
SIGHT = 8  # positions that a short-sighted decoder sees
Select = Callable[[Tensor, Tensor], Tensor]  # where a fault is


def verify_without_residual(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """Verify, but resample from the target instead of the residual."""
    accepted = u * probability(p, draft) < probability(q, draft)
    return finish(q, torch.zeros_like(p), draft, point, accepted, race(q, exponential), exponential)


def keep_rejected(q: Tensor, p: Tensor, draft: Tensor, *rest: Any) -> Verified:
    """Verify, but keep the draft that has just been rejected."""
    return Verified(draft, verify(q, p, draft, *rest).kept)


def replace_verify(faulty: Callable[..., Verified]) -> Decoder:
    """Put another function in the place of assd's `verify`."""
    return patch_module("parity_decoders.anysubset.assd", verify=faulty).assd


def replace_laws(decoder: Decoder, laws: Callable[..., Tensor]) -> Decoder:
    """Put laws(model, tokens, order, n_prompt, ranks, n_seen) in the place of the model's."""
    return change_model(decoder, lambda model: Overridden(model, "laws", laws))


def show_drafts(model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
    """Condition the joint density of drafts on later drafts, too."""
    is_joint = (ranks == n_seen).all(1, keepdim=True)
    n_seen = torch.where(is_joint, n_seen.amax(1, keepdim=True) + 1, n_seen)
    return model.laws(tokens, order, n_prompt, ranks, n_seen)


def ignore_words(
    model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor, *, right: bool
) -> Tensor:
    """Compute laws that ignore words more than SIGHT positions away, or all words to the `right`."""
    positions = order.gather(1, ranks.clamp(max=tokens.shape[1] - 1))
    offset = torch.arange(tokens.shape[1]) - positions[..., None]
    in_sight = (offset < 0) if right else (offset.abs() <= SIGHT)
    is_seen = (invert_order(order)[:, None] < n_seen[..., None]) & in_sight
    line = torch.where(is_seen, tokens[:, None], model.mask)
    law = model.rule.laws_given(line.flatten(0, 1), positions.flatten()).unflatten(0, ranks.shape)
    return torch.cat([law, law.new_zeros(*law.shape[:2], 1)], -1)


def flatten_laws(decoder: Decoder, share: float, select: Select = lambda ranks, _: ranks >= 0) -> Decoder:
    """Mix laws with the uniform law over possible words, by a share, where select(ranks [B, S], n_prompt [B]) holds."""

    def laws(model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        p = model.laws(tokens, order, n_prompt, ranks, n_seen)
        possible = p > 0
        flat = (1 - share) * p + share * possible / possible.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(select(ranks, n_prompt)[..., None], flat, p)

    return replace_laws(decoder, laws)


def reuse_from(rank: int) -> Callable[[Tensor], Tensor]:
    """Make loops that begin at `rank` or later read the numbers of the loop that begins at `rank`."""

    def renumber(index: Tensor) -> Tensor:
        first_rank = index // LENGTH
        slot = index % LENGTH - first_rank
        return torch.where((first_rank >= rank) & (slot >= 0), rank * LENGTH + rank + slot, index)

    return renumber


def fill_backwards(model: Any, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Fill words in from right to left."""
    rank = torch.arange(start.order.shape[1])
    is_missing = (rank >= start.begin[:, None]) & (rank < start.end[:, None])
    reversed_rank = torch.where(is_missing, (start.begin + start.end)[:, None] - 1 - rank, rank)
    return sequential(model, start._replace(order=start.order.gather(1, reversed_rank)), noise=noise)


VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    "sequential": (sequential, "none"),
    "assd": (partial(assd, k=3), "none"),
    "assd: accept +0.05": (partial(assd, k=3, tolerance=0.05), "accept +0.05"),
    "assd: all accepted": (partial(diffusion, steps=1), "parallel"),
    "assd: residual p": (partial(replace_verify(verify_without_residual), k=3), "residual p"),
    "assd: no resampling": (partial(replace_verify(keep_rejected), k=3), "no resampling"),
    "assd: shared uniform": (
        partial(renumber(assd, lambda index: index[:, :1].expand_as(index), only="accept"), k=3), "shared uniform"
    ),
    "assd: draft kept as condition": (partial(replace_laws(assd, show_drafts), k=3), "draft kept as condition"),
    "sigma_gpt": (sigma_gpt, "no resampling, any order"),
}  # fmt: skip

K = {"k": 5}
CORRECT = {"sequential": (sequential, {}), "assd": (assd, K), "assd_ngram": (assd_ngram, K)}
LONG: Faulty = {
    "assd: late reuse": (renumber(assd, reuse_from(LATE)), f"noise used again from rank {LATE} on", "chain"),
    "assd: accept reuse": (
        renumber(assd, reuse_from(AGAIN), only="accept"), f"acceptance uniforms again from rank {AGAIN} on", "chain"
    ),
    "assd: beyond 128": (
        flatten_laws(assd, 0.2, lambda ranks, _: ranks >= FAR), f"laws flatter from rank {FAR} on", "far"
    ),
    "sequential: twins of 9 to 64": (
        change_noise(sequential, share_noise_in_runs), "rows share their noise in batches of 9 to 64", "chain"
    ),
    "assd: last": (flatten_laws(assd, 0.6, lambda ranks, _: ranks == LENGTH - 1), "last word's law flatter", "copy"),
    "assd: beyond 32": (
        flatten_laws(assd, 0.15, lambda ranks, _: ranks >= LATE), f"laws flatter from rank {LATE} on", "hidden"
    ),
    "assd: other prompts": (  # of rows whose prompts are longer than the batch's shortest
        flatten_laws(assd, 0.1, lambda _, n_prompt: (n_prompt > n_prompt.min())[:, None]),
        "laws flatter where prompts differ", "hidden",
    ),
    "assd: alone": (swap_in_small(assd, flatten_laws(assd, 0.3), 1), "laws flatter when alone in the batch", "chain"),
    "assd_ngram: small batch": (
        swap_in_small(assd_ngram, flatten_laws(assd_ngram, 0.3), 3), "laws flatter in batches of three or fewer",
        "chain",
    ),
    "assd: short-sighted": (
        replace_laws(assd, partial(ignore_words, right=False)), f"words beyond {SIGHT} places unseen", "copy"
    ),
    "assd: no right": (replace_laws(assd, partial(ignore_words, right=True)), "words to the right unseen", "chain"),
    "assd: no resampling": (replace_verify(keep_rejected), "no resampling", "parity"),
    "sequential: backwards": (fill_backwards, "order from right to left", "sharpened"),
    "sequential: twins": (change_noise(sequential, share_noise), "rows share their noise", "hidden"),
}  # fmt: skip


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield every variant on an inconsistent and on a consistent target."""

    def sample(decoder: Decoder, target: Target, seed: int) -> list[Row]:
        drawn = target.draw(decoder, n, seed, {}, threads)
        return adjust_over_targets(target.make_rows(drawn, "any-order", seed, draws))

    chosen = [t for t in targets() if t.name in ON]
    for (method, (decoder, fault)), target in itertools.product(VARIANTS.items(), chosen):
        yield Trial(method, fault, partial(sample, decoder, target), n >= NEEDED)


def make_long_trials(n: int) -> Iterator[Trial]:
    yield from make_trials_on_long("anysubset", CORRECT, LONG, long_targets, n)
