"""Faults of any-subset decoding that short texts do not show, each on a long model of text."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.assd_ngram import assd_ngram
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.steps import Fill
from parity.equality.faults import Trial, in_small, with_model, with_noise
from parity.equality.faults.anysubset import no_resampling, with_verify
from parity.equality.faults.long import FAR, Numbered, over, twins, twins_between
from parity.equality.long.anysubset import targets
from parity.equality.targets import Decoder
from parity.models.anysubset.hidden import LongSubset
from parity.models.anysubset.protocol import Infilling, ranked

Change = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
LENGTH = 64  # words of a chain at K
AGAIN = 20  # the rank from which acceptance uniforms are used again
LATE, SIGHT = 32, 8  # the rank from which noise is used again; places that a short-sighted decoder sees


class Perturbed:
    """Wraps a model and perturbs its conditionals: change(laws [B, S, V], ranks [B, S], begin [B], tokens [B, N])."""

    def __init__(self, model: LongSubset, change: Change):
        self.model, self.vocab, self.mask, self.change = model, model.vocab, model.mask, change

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        return self.change(self.model.laws(tokens, order, begin, ranks, seen), ranks, begin, tokens)


class ShortSighted:
    """A model that is not told words further away than SIGHT places, or any to the right."""

    def __init__(self, model: LongSubset, right: bool):
        self.model, self.vocab, self.mask, self.right = model, model.vocab, model.mask, right

    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        N, at = tokens.shape[1], order.gather(1, ranks.clamp(max=tokens.shape[1] - 1))
        away = torch.arange(N) - at[..., None]
        in_sight = (away.abs() <= SIGHT) if self.right else (away < 0)
        known = (ranked(order)[:, None] < seen[..., None]) & in_sight
        line = torch.where(known, tokens[:, None], self.mask)
        law = self.model.rule.laws_given(line.flatten(0, 1), at.flatten()).unflatten(0, ranks.shape)
        return torch.cat([law, law.new_zeros(*law.shape[:2], 1)], -1)


def flatter(laws: Tensor, share: float) -> Tensor:
    """Mixes the law with the uniform law over possible words, by a share."""
    can = laws > 0
    return (1 - share) * laws + share * can / can.sum(-1, keepdim=True).clamp(min=1)


def where(laws: Tensor, which: Tensor, share: float) -> Tensor:
    return torch.where(which[..., None], flatter(laws, share), laws)


def last(laws: Tensor, ranks: Tensor, begin: Tensor, tokens: Tensor) -> Tensor:
    return where(laws, ranks == tokens.shape[1] - 1, 0.6)


def beyond(laws: Tensor, ranks: Tensor, begin: Tensor, tokens: Tensor) -> Tensor:
    return where(laws, ranks >= LATE, 0.15)


def far(laws: Tensor, ranks: Tensor, begin: Tensor, tokens: Tensor) -> Tensor:
    return where(laws, ranks >= FAR, 0.2)


def other_prompts(laws: Tensor, ranks: Tensor, begin: Tensor, tokens: Tensor) -> Tensor:
    """Of rows whose prompts are longer than the batch's shortest."""
    return where(laws, (begin > begin.min())[:, None].expand_as(ranks), 0.1)


def everywhere(laws: Tensor, ranks: Tensor, begin: Tensor, tokens: Tensor) -> Tensor:
    return flatter(laws, 0.3)


def with_laws(decoder: Decoder, change: Change) -> Decoder:
    return with_model(decoder, lambda model: Perturbed(model, change))


def late(index: Tensor, rank: int) -> Tensor:
    """A loop that begins at a rank or behind has the numbers of one that begins there."""
    begin, slot = index // LENGTH, index % LENGTH - index // LENGTH
    return torch.where((begin >= rank) & (slot >= 0), rank * LENGTH + rank + slot, index)


def reused(noise: Noise) -> Noise:
    return Numbered(noise, partial(late, rank=LATE))


def accept_reused(noise: Noise) -> Noise:
    return Numbered(noise, partial(late, rank=AGAIN), only="accept")


def backwards(model: LongSubset, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Words are filled in from right to left."""
    rank = torch.arange(start.order.shape[1])
    free = (rank >= start.begin[:, None]) & (rank < start.end[:, None])
    turned = torch.where(free, (start.begin + start.end)[:, None] - 1 - rank, rank)
    return sequential(model, start._replace(order=start.order.gather(1, turned)), noise=noise)


K, EVERY = {"k": 5}, ("chain", "copy", "parity", "hidden", "sharpened", "far")
# The decoder, its options, its fault, and the models on which it is looked for: of a correct one all.
VARIANTS: dict[str, tuple[Decoder, dict[str, Any], str, tuple[str, ...]]] = {
    "sequential": (sequential, {}, "none", EVERY),
    "assd": (assd, K, "none", EVERY),
    "assd_ngram": (assd_ngram, K, "none", EVERY),
    "assd: late reuse": (with_noise(assd, reused), K, f"noise used again from rank {LATE} on", ("chain",)),
    "assd: accept reuse": (
        with_noise(assd, accept_reused), K, f"acceptance uniforms again from rank {AGAIN} on", ("chain",)
    ),
    "assd: beyond 128": (with_laws(assd, far), K, f"laws flatter from rank {FAR} on", ("far",)),
    "sequential: twins of 9 to 64": (
        with_noise(sequential, twins_between), {},
        "rows share their noise in batches of 9 to 64", ("chain",),
    ),
    "assd: last": (with_laws(assd, last), K, "last word's law flatter", ("copy",)),
    "assd: beyond 32": (with_laws(assd, beyond), K, f"laws flatter from rank {LATE} on", ("hidden",)),
    "assd: other prompts": (with_laws(assd, other_prompts), K, "laws flatter where prompts differ", ("hidden",)),
    "assd: alone": (
        in_small(assd, with_laws(assd, everywhere), 1), K, "laws flatter when alone in the batch",
        ("chain",),
    ),
    "assd_ngram: small batch": (
        in_small(assd_ngram, with_laws(assd_ngram, everywhere), 3), K, "laws flatter in batches of three or fewer",
        ("chain",),
    ),
    "assd: short-sighted": (
        with_model(assd, partial(ShortSighted, right=True)), K, f"words beyond {SIGHT} places unseen", ("copy",)
    ),
    "assd: no right": (
        with_model(assd, partial(ShortSighted, right=False)), K, "words to the right unseen", ("chain",)
    ),
    "assd: no resampling": (with_verify(no_resampling), K, "no resampling", ("parity",)),
    "sequential: backwards": (backwards, {}, "order from right to left", ("sharpened",)),
    "sequential: twins": (
        with_noise(sequential, twins), {}, "rows share their noise", ("hidden",)
    ),
}  # fmt: skip


def trials(n: int, seeds: Sequence[int], draws: int = 0, threads: int = 1) -> Iterator[Trial]:
    """Every variant, about n words a target; its tests are one family."""
    yield from over(VARIANTS, targets, n)
