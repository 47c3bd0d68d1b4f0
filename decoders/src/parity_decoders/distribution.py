"""The distribution that is sampled: what guidance, filters, processors and a grammar make of a model's logits.

Decoding, `generate`, training and tests all make it here, so a decoder sees one distribution, and acceptance uses it on
both sides. Scores are logits whose softmax is a distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parity_decoders.undefined import find_undefined

Prefixes = list[list[Tensor]] | None  # the ids [n] up to slot s of row b, at [b][s]


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from a model's logits: part of what the distribution is, so the same for every method."""

    guidance: float = 1.0  # scale s of classifier-free guidance u + s (c - u); 1 is none
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0


@dataclass(frozen=True, eq=False)
class Guidance:
    """Classifier-free guidance u + scale (c - u), with the unconditional prompts of a model that does not hold them.

    Its two forms have one softmax and differ by rounding: that of log-probabilities, which are logits plus a number for
    each slot, has the scores of `generate`; that of logits saves two log-softmaxes.
    """

    scale: Any  # a number, or [B, 1, 1]
    ids: Tensor | None = None  # [B, P] unconditional prompts; None: the last token of each prompt
    unpadded: Tensor | None = None  # [B, P] false on padding; None: there is none
    form: Literal["logits", "log_probabilities"] = "logits"

    def __call__(self, logits: Tensor) -> Tensor:
        """Guide logits [2B, S, V], conditional rows first: [B, S, V]. As in `generate`, unconditional log-probabilities
        are of the model's dtype, the others of float32."""
        conditional, unconditional = logits.chunk(2)
        if self.form == "logits":
            return torch.lerp(unconditional, conditional, self.scale)
        conditional, unconditional = conditional.float().log_softmax(-1), unconditional.log_softmax(-1)
        return unconditional + self.scale * (conditional - unconditional)


class Stage:
    """A step from scores [B, S, V] to others, given the positions [B or 1, S] and ids of the tokens before each slot.
    Messages call it by its name."""

    reads_prefix = False  # whether it reads these ids

    @property
    def name(self) -> str:
        return type(self).__name__

    def __call__(self, scores: Tensor, positions: Tensor | None = None, prefixes: Prefixes = None, /) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Temperature(Stage):
    temperature: float

    def __call__(self, scores: Tensor, *_: Any) -> Tensor:
        return scores / self.temperature


@dataclass(frozen=True)
class TopK(Stage):
    k: int

    def __call__(self, scores: Tensor, *_: Any) -> Tensor:
        """Set all but the k largest of the last dimension to -inf; ties with the k-th are kept."""
        return scores.masked_fill(scores < scores.topk(min(self.k, scores.shape[-1])).values[..., -1:], float("-inf"))


@dataclass(frozen=True)
class TopP(Stage):
    p: float
    at_least: int = 1

    def __call__(self, scores: Tensor, *_: Any) -> Tensor:
        """Set all but the smallest set of most likely tokens whose mass reaches p, of at_least tokens, to -inf
        (Holtzman et al. 2020); of equal tokens the first are kept. Only values are sorted, on a CPU by numpy, ten times
        faster than torch."""
        if scores.device.type == "cpu":
            ordered = torch.from_numpy(np.sort(scores.detach().numpy())).flip(-1)
        else:
            ordered = scores.sort(descending=True).values
        mass = ordered.softmax(-1).cumsum(-1, dtype=torch.float64)
        # a token is kept if the mass of likelier ones is less than p
        n_kept = ((mass[..., :-1] < self.p).sum(-1, keepdim=True) + 1).clamp(min=min(self.at_least, scores.shape[-1]))
        least = ordered.gather(-1, n_kept - 1)
        n_equal = n_kept - (scores > least).sum(-1, keepdim=True)
        is_equal = scores == least
        excluded = (scores < least) | (is_equal & (is_equal.cumsum(-1, dtype=torch.int32) > n_equal))
        return scores.masked_fill(excluded, float("-inf"))


@dataclass(frozen=True, eq=False)
class Grammar(Stage):
    """Tokens by position. A forced one has probability 1, whatever its logit; positions after the last are as it."""

    forced: Tensor  # [L] the token at a position, -1 where the model chooses
    chosen: Tensor | None = None  # [K] the tokens between which it chooses; None: all

    def __call__(self, scores: Tensor, positions: Tensor | None = None, *_: Any) -> Tensor:
        assert positions is not None
        V = scores.shape[-1]
        if self.chosen is not None:
            excluded = torch.ones(V, dtype=torch.bool, device=scores.device).scatter(0, self.chosen, False)
            scores = scores.masked_fill(excluded, float("-inf"))
        forced = self.forced[(positions + 1).clamp(max=len(self.forced) - 1)][..., None]
        is_forced = torch.arange(V, device=scores.device) == forced
        return torch.where(forced >= 0, torch.where(is_forced, scores.new_zeros(()), float("-inf")), scores)


@dataclass(frozen=True)
class Distribution:
    """A frozen pipeline from a model's logits to scores: guidance, then stages in order.

    guidance  None: the model has no unconditional rows
    greedy    whether all probability goes to the likeliest token
    dtype     of the scores; None: of the logits, float32 at least
    """

    guidance: Guidance | None
    stages: tuple[Stage, ...]
    greedy: bool = False
    dtype: torch.dtype | None = None

    @property
    def grammar(self) -> Grammar | None:
        return next((stage for stage in self.stages if isinstance(stage, Grammar)), None)

    def needs_prefix(self) -> bool:
        """Return whether a stage reads the tokens before a slot."""
        return any(stage.reads_prefix for stage in self.stages)

    def apply(self, logits: Tensor, positions: Tensor | None = None, prefixes: Prefixes = None) -> Tensor:
        """Turn logits [R, S, V] into scores [B, S, V]; R = 2B, conditional rows first, if guided. positions [B or 1,
        S]: of the tokens before, needed by a grammar; prefixes: needed if `needs_prefix`."""
        for _, scores in self.list_stages(logits, positions, prefixes):
            result = scores
        if self.greedy:
            largest, likeliest = result.max(-1, keepdim=True)
            # 0 for the likeliest, and NaN where nothing is likely, so that it is seen
            result = torch.full_like(result, -torch.inf).scatter_(2, likeliest, largest - largest)
        return result

    def list_stages(self, logits: Tensor, positions: Tensor | None, prefixes: Prefixes) -> Iterator[tuple[str, Tensor]]:
        """Yield the scores [B, S, V] after guidance and after each stage, with the name of each. See `apply`."""
        scores = logits if self.guidance is None else self.guidance(logits)
        if self.dtype or scores.dtype.itemsize < 4:
            scores = scores.to(self.dtype or torch.float32)
        yield "guidance", scores
        for stage in self.stages:
            scores = stage(scores, positions, prefixes)
            yield stage.name, scores

    def explain(self, row: int, logits: Tensor, positions: Tensor | None, prefixes: Prefixes) -> str:
        """Say in words why the logits of a row, of all [R, 1, V], have no distribution. See `apply`."""
        for kind, holds in (("NaN", torch.isnan), ("infinite", torch.isposinf)):
            if holds(logits[row :: len(logits) // (2 if self.guidance else 1)]).any():
                return f"the model's logits are {kind} (a weight, or an overflow of its dtype); allowed: numbers"
        for name, scores in self.list_stages(logits, positions, prefixes):
            if find_undefined(scores[row]).any():
                return f"{name} leaves no token; allowed: at least one"
        return "no token is left; allowed: at least one"


def make_distribution(sampling: TokenSampling, forced: Tensor | None = None) -> Distribution:
    """Make the distribution of sampling settings; forced [L]: as of a Grammar."""
    stages: list[Stage] = [Temperature(sampling.temperature)] if sampling.temperature != 1 else []
    stages += [TopK(sampling.top_k)] if sampling.top_k else []
    stages += [TopP(sampling.top_p)] if sampling.top_p < 1 else []
    if forced is not None and bool((forced >= 0).any()):
        stages.append(Grammar(forced))
    return Distribution(None if sampling.guidance == 1 else Guidance(sampling.guidance), tuple(stages))
