"""Faults injected in any-subset decoders: their verification, their noise or the distributions they see are
exchanged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from parity_certify.result_rows import Row
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.diffusion import diffusion
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.anysubset.sigma_gpt import sigma_gpt
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import Infilling, invert_order
from parity_decoders.steps import Fill
from parity_decoders.verification import Verified, finish, probability, sample_token, verify
from torch import Tensor

from parity.equality.exact import adjust_over_targets
from parity.equality.targets import Decoder
from parity.equality.targets.anysubset import Target, long_targets, targets
from tests.equality.faults import (
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

# The targets of short trials; on consistent 3x5 the smallest fault is a TV of .009, too small for n sequences to show.
ON = ("random 3x5", "consistent 3x4")
NEEDED = 10_000  # number of sequences in which the tests must find each fault
SIGHT = 8  # distance in positions beyond which a short-sighted decoder sees no words
# says, bool by ranks [B, S] and n_prompt [B], where a fault changes distributions
Select = Callable[[Tensor, Tensor], Tensor]


def verify_without_residual(
    q: Tensor, p: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float
) -> Verified:
    """Verify drafts, but replace a rejected one by a draw from the target's distribution q instead of the residual (a
    fault)."""
    accepted = u * probability(p, draft) < probability(q, draft)
    return finish(q, torch.zeros_like(p), draft, point, accepted, sample_token(q, exponential), exponential)


def keep_rejected(q: Tensor, p: Tensor, draft: Tensor, *rest: Any) -> Verified:
    """Verify drafts, but keep a rejected draft as the corrected token (a fault)."""
    return Verified(draft, verify(q, p, draft, *rest).kept)


def replace_verify(faulty: Callable[..., Verified]) -> Decoder:
    """Make the decoder assd with `faulty` in the place of its function `verify`."""
    return patch_module("parity_decoders.anysubset.assd", verify=faulty).assd


def replace_probs(decoder: Decoder, probs: Callable[..., Tensor]) -> Decoder:
    """Make the decoder see distributions(model, tokens, order, n_prompt, ranks, n_seen) in the place of the model's
    distributions."""
    return change_model(decoder, lambda model: Overridden(model, "probs", probs))


def show_drafts(model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
    """Compute the model's distributions, but let drafts that are scored jointly see the later drafts too, themselves
    included (a fault): n_seen is raised in rows whose ranks all equal it."""
    is_joint = (ranks == n_seen).all(1, keepdim=True)
    n_seen = torch.where(is_joint, n_seen.amax(1, keepdim=True) + 1, n_seen)
    return model.probs(tokens, order, n_prompt, ranks, n_seen)


def ignore_words(
    model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor, *, right: bool
) -> Tensor:
    """Compute distributions [B, S, V] that ignore words to the right if `right`, else words more than SIGHT positions
    away."""
    positions = order.gather(1, ranks.clamp(max=tokens.shape[1] - 1))
    offset = torch.arange(tokens.shape[1]) - positions[..., None]
    in_sight = (offset < 0) if right else (offset.abs() <= SIGHT)
    is_seen = (invert_order(order)[:, None] < n_seen[..., None]) & in_sight
    line = torch.where(is_seen, tokens[:, None], model.mask)
    probs = model.rule.probs_given(line.flatten(0, 1), positions.flatten()).unflatten(0, ranks.shape)
    return torch.cat([probs, probs.new_zeros(*probs.shape[:2], 1)], -1)


def flatten_probs(decoder: Decoder, share: float, select: Select = lambda ranks, _: ranks >= 0) -> Decoder:
    """Make the decoder see distributions that are mixed with a share of the uniform distribution over possible words,
    where select(ranks [B, S], n_prompt [B]) holds; by default everywhere."""

    def probs(model: Any, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        p = model.probs(tokens, order, n_prompt, ranks, n_seen)
        possible = p > 0
        flat = (1 - share) * p + share * possible / possible.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(select(ranks, n_prompt)[..., None], flat, p)

    return replace_probs(decoder, probs)


def fill_backwards(model: Any, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Decode as `sequential` does, but fill in the missing words in reversed order, from right to left (a fault)."""
    rank = torch.arange(start.order.shape[1])
    is_missing = (rank >= start.begin[:, None]) & (rank < start.end[:, None])
    reversed_rank = torch.where(is_missing, (start.begin + start.end)[:, None] - 1 - rank, rank)
    return sequential(model, start._replace(order=start.order.gather(1, reversed_rank)), noise=noise)


VARIANTS: dict[str, tuple[Decoder, str]] = {  # decoders of short trials and their faults, by name
    "sequential": (sequential, "none"),
    "assd": (partial(assd, k=3), "none"),
    "assd: accept +0.05": (partial(assd, k=3, tolerance=0.05), "accept +0.05"),
    "assd: all accepted": (partial(diffusion, steps=1), "parallel"),
    "assd: residual p": (partial(replace_verify(verify_without_residual), k=3), "residual p"),
    "assd: no resampling": (partial(replace_verify(keep_rejected), k=3), "no resampling"),
    "assd: shared uniform": (
        partial(renumber(assd, lambda index: index[:, :1].expand_as(index), only="accept"), k=3), "shared uniform"
    ),
    "assd: draft kept as condition": (partial(replace_probs(assd, show_drafts), k=3), "draft kept as condition"),
    "sigma_gpt": (sigma_gpt, "no resampling, any order"),
}  # fmt: skip

K = {"k": 5}
CORRECT = {"sequential": (sequential, {}), "assd": (assd, K)}
LONG: Faulty = {
    "assd: beyond 128": (
        flatten_probs(assd, 0.2, lambda ranks, _: ranks >= FAR), f"drawn flatter from rank {FAR} on", "far"
    ),
    "sequential: twins of 9 to 64": (
        change_noise(sequential, share_noise_in_runs), "rows share their noise in batches of 9 to 64", "chain"
    ),
    "assd: other prompts": (  # changes the rows whose prompts are longer than the batch's shortest
        flatten_probs(assd, 0.1, lambda _, n_prompt: (n_prompt > n_prompt.min())[:, None]),
        "drawn flatter where prompts differ", "hidden",
    ),
    "assd: alone": (swap_in_small(assd, flatten_probs(assd, 0.3), 1), "drawn flatter when alone in the batch", "chain"),
    "assd: short-sighted": (
        replace_probs(assd, partial(ignore_words, right=False)), f"words beyond {SIGHT} places unseen", "copy"
    ),
    "assd: no right": (replace_probs(assd, partial(ignore_words, right=True)), "words to the right unseen", "chain"),
    "assd: no resampling": (replace_verify(keep_rejected), "no resampling", "parity"),
    "sequential: backwards": (fill_backwards, "order from right to left", "sharpened"),
    "sequential: twins": (change_noise(sequential, share_noise), "rows share their noise", "hidden"),
}  # fmt: skip


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield a trial of n sequences for each of VARIANTS on an inconsistent and on a consistent target. draws: of the
    Monte-Carlo null; `seeds` is not read."""

    def sample(decoder: Decoder, target: Target, seed: int) -> list[Row]:
        drawn = target.draw(decoder, n, seed, {}, threads)
        return adjust_over_targets(target.make_rows(drawn, "any-order", seed, draws))

    chosen = [t for t in targets() if t.name in ON]
    for (method, (decoder, fault)), target in itertools.product(VARIANTS.items(), chosen):
        yield Trial(method, fault, partial(sample, decoder, target), n >= NEEDED)


def make_long_trials(n: int) -> Iterator[Trial]:
    """Yield a trial of about n tokens on long targets for each decoder of CORRECT and LONG."""
    yield from make_trials_on_long("anysubset", CORRECT, LONG, long_targets, n)
