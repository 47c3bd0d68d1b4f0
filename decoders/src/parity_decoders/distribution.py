"""The distribution that is sampled: what is made of a model's logits by guidance, filters and grammar, in this order.

Decoding, training, timing, tests and `generate` make it here, so that a decoder sees one distribution and acceptance
uses it on both sides.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from parity_decoders.undefined import find_undefined

Prefixes = list[list[Tensor]]  # the ids [n] up to slot s of row b at [b][s]


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from a model's logits: part of what the distribution is, so the same for every method."""

    guidance: float = 1.0  # scale s of classifier-free guidance u + s (c - u); 1 is none
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0


class Stage(Protocol):
    """A step from scores to scores.

    name     for messages
    prefixes whether it reads the tokens before a slot
    """

    @property
    def name(self) -> str: ...

    @property
    def prefixes(self) -> bool: ...

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Tensor:
        """Turn scores [B, S, V] after tokens at positions [B or 1, S] into scores [B, S, V]."""
        ...


class ByScores:
    """A stage that reads scores alone, or positions."""

    prefixes = False

    @property
    def name(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance of logits. Its distribution is that of guided log-probabilities, with one softmax
    less."""

    scale: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn logits [R, S, V] into scores [B, S, V] of float32 at least: R = 2B, conditional rows first, if scale is
        not 1."""
        if self.scale != 1:
            conditional, unconditional = logits.chunk(2)
            logits = torch.lerp(unconditional, conditional, self.scale)
        return logits.float() if logits.dtype.itemsize < 4 else logits


@dataclass(frozen=True)
class Temperature(ByScores):
    temperature: float

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Tensor:
        return scores / self.temperature


@dataclass(frozen=True)
class TopK(ByScores):
    k: int

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Tensor:
        return top_k_filter(scores, self.k)


@dataclass(frozen=True)
class TopP(ByScores):
    p: float
    at_least: int = 1

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Tensor:
        return top_p_filter(scores, self.p, self.at_least)


@dataclass(frozen=True)
class Forced(ByScores):
    """A grammar by position: forced [L], the token that must stand at a position, or -1."""

    forced: Tensor

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Tensor:
        forced = self.forced[(positions + 1).clamp(max=len(self.forced) - 1)][..., None]
        is_forced = torch.arange(scores.shape[-1], device=scores.device) == forced
        return torch.where(forced >= 0, torch.where(is_forced, scores.new_zeros(()), float("-inf")), scores)


@dataclass(frozen=True)
class Distribution:
    """From a model's logits to scores whose softmax is the distribution.

    greedy  all probability goes to the likeliest token
    """

    guidance: Guidance
    stages: tuple[Stage, ...]
    greedy: bool = False

    @property
    def guided(self) -> bool:
        """Whether a model's rows are conditional ones, then as many unconditional ones."""
        return self.guidance.scale != 1

    def needs_prefixes(self) -> bool:
        """Return whether a stage reads the tokens before a slot."""
        return any(stage.prefixes for stage in self.stages)

    def apply(self, logits: Tensor, positions: Any, prefixes: Prefixes | None = None) -> Tensor:
        """Turn logits [R, S, V] into scores [B, S, V]. positions [B or 1, S]: of the tokens before; prefixes: needed if
        `needs_prefixes`."""
        scores = self.guidance(logits)
        for stage in self.stages:
            scores = stage(scores, positions, prefixes)
        if self.greedy:
            largest, likeliest = scores.max(-1, keepdim=True)
            # 0 for the likeliest, and NaN where nothing is likely, so that it is seen
            scores = torch.full_like(scores, -torch.inf).scatter_(2, likeliest, largest - largest)
        return scores

    def list_scores(self, logits: Tensor, positions: Tensor, prefixes: Prefixes | None) -> Iterator[tuple[str, Tensor]]:
        """Yield the scores [B, S, V] after guidance and after each stage, with its name. See `apply`."""
        scores = self.guidance(logits)
        yield "guidance", scores
        for stage in self.stages:
            scores = stage(scores, positions, prefixes)
            yield stage.name, scores

    def explain(self, row: int, logits: Tensor, positions: Tensor, prefixes: Prefixes | None) -> str:
        """Say in words why the logits of a row, of all [R, 1, V], have no distribution. See `apply`."""
        for kind, holds in (("NaN", torch.isnan), ("infinite", torch.isposinf)):
            if holds(logits[row :: len(logits) // (2 if self.guided else 1)]).any():
                return f"the model's logits are {kind} (a weight, or an overflow of its dtype); allowed: numbers"
        for name, scores in self.list_scores(logits, positions, prefixes):
            if find_undefined(scores[row]).any():
                return f"{name} leaves no token; allowed: at least one"
        return "no token is left; allowed: at least one"


def make_distribution(sampling: TokenSampling, forced: Tensor | None = None) -> Distribution:
    """Make the distribution of sampling settings. forced [L]: the token that must stand at a position, or -1."""
    stages: list[Stage] = []
    if sampling.temperature != 1:
        stages.append(Temperature(sampling.temperature))
    if sampling.top_k:
        stages.append(TopK(sampling.top_k))
    if sampling.top_p < 1:
        stages.append(TopP(sampling.top_p))
    if forced is not None and bool((forced >= 0).any()):
        stages.append(Forced(forced))
    return Distribution(Guidance(sampling.guidance), tuple(stages))


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest of the last dimension to -inf; ties with the k-th are kept."""
    return logits.masked_fill(logits < logits.topk(min(k, logits.shape[-1])).values[..., -1:], float("-inf"))


def top_p_filter(logits: Tensor, p: float, at_least: int = 1) -> Tensor:
    """Set all but the smallest set of most likely tokens whose mass reaches p, of at_least tokens, to -inf (Holtzman et
    al. 2020); of equal tokens the first are kept. Only values are sorted, on a CPU by numpy, ten times faster than
    torch."""
    if logits.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(logits.detach().numpy())).flip(-1)
    else:
        ordered = logits.sort(descending=True).values
    mass = ordered.softmax(-1).cumsum(-1, dtype=torch.float64)
    # a token is kept if the mass of likelier ones is less than p
    n_kept = ((mass[..., :-1] < p).sum(-1, keepdim=True) + 1).clamp(min=min(at_least, logits.shape[-1]))
    least = ordered.gather(-1, n_kept - 1)
    n_equal = n_kept - (logits > least).sum(-1, keepdim=True)
    is_equal = logits == least
    excluded = (logits < least) | (is_equal & (is_equal.cumsum(-1, dtype=torch.int32) > n_equal))
    return logits.masked_fill(excluded, float("-inf"))
