"""From a model's logits to the law that is sampled: guidance, temperature, top-k, top-p, grammar.

`Sampled` wraps a model and satisfies the same protocol, so a decoder sees one law and acceptance ratios use it on both
sides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from parity.models.discrete.protocol import Drafter, TokenModel


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from a model's logits: part of what the law is, so the same for every method."""

    guidance: float = 1.0  # scale s of classifier-free guidance u + s (c - u); 1 is none
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """All but the k largest of the last dimension to -inf; ties with the k-th are kept."""
    return logits.masked_fill(logits < logits.topk(min(k, logits.shape[-1])).values[..., -1:], float("-inf"))


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """The smallest set of most likely tokens whose mass reaches p; the rest to -inf (Holtzman et al. 2020)."""
    ordered, order = logits.sort(descending=True)
    law = ordered.softmax(-1)
    out = law.cumsum(-1) - law >= p  # by the mass of the more likely ones
    return logits.masked_fill(torch.empty_like(out).scatter_(-1, order, out), float("-inf"))


class Sampled:
    """A model under sampling settings: the same protocol, its logits those of the law, float32 or wider."""

    codebook: Any  # these three: the model's, None where it has none
    raw_codebook: Any
    embeddings: Any

    def __init__(self, model: TokenModel, sampling: TokenSampling):
        self.model, self.sampling = model, sampling
        self.vocab, self.length, self.width, self.forced = model.vocab, model.length, model.width, model.forced
        for vectors in ("codebook", "raw_codebook", "embeddings"):
            setattr(self, vectors, getattr(model, vectors, None))
        self.static = getattr(model, "static", False)

    @cached_property
    def grammar(self) -> bool:
        """Whether tokens are forced."""
        return bool((self.forced >= 0).any())

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [B, S] -> [B, S, V]. Guided, the model has B conditional, then B unconditional rows."""
        return self._law(self.model.logits, positions, tokens)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [B, S] -> [B, S, V]."""
        return self._law(lambda t, at, up: self.model.tree(t, at, up), positions, tokens, parents)

    def keep(self, nodes: Tensor) -> None:
        self.model.keep(nodes if self.sampling.guidance == 1 else nodes.repeat(2, 1))

    def join(self, rows: Tensor, fresh: "Sampled") -> None:
        """See TokenModel."""
        model: Any = self.model  # only what can be refilled is asked to
        model.join(rows if self.sampling.guidance == 1 else rows.repeat(2), fresh.model)

    @property
    def drafter(self) -> "SampledDrafter":
        """The model's drafter, its laws those of the same settings."""
        return SampledDrafter(self)

    @cached_property
    def draft(self) -> "Sampled | None":
        """The model's draft model under the same settings."""
        inner = getattr(self.model, "draft", None)
        return None if inner is None else Sampled(inner, self.sampling)

    def _law(self, logits_of: Callable[..., Tensor], positions: Tensor, tokens: Tensor, *more: Tensor) -> Tensor:
        s = self.sampling
        if s.guidance == 1:
            logits = logits_of(tokens, positions, *more)
        else:
            B, both = len(tokens), logits_of(*(torch.cat([x, x]) for x in (tokens, positions, *more)))
            logits = torch.lerp(both[B:], both[:B], s.guidance)
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        if s.temperature != 1:
            logits = logits / s.temperature
        if s.top_k:
            logits = top_k_filter(logits, s.top_k)
        if s.top_p < 1:
            logits = top_p_filter(logits, s.top_p)
        if self.grammar:
            forced = self.forced[(positions + 1).clamp(max=self.length - 1)][..., None]
            other = torch.arange(self.vocab, device=logits.device) != forced
            logits = torch.where((forced >= 0) & other, float("-inf"), torch.where((forced >= 0) & ~other, 0.0, logits))
        return logits


class SampledDrafter:
    """A model's drafter under the settings that the model is sampled with."""

    def __init__(self, sampled: Sampled):
        self.law_of = sampled._law
        self.drafter: Drafter = sampled.model.drafter  # type: ignore[attr-defined]  # only methods that need one ask

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """tokens, positions, sources [B, S] -> [B, S, V]."""
        return self.law_of(self.drafter.logits, positions, tokens, sources)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [B, S] -> [B, S, V]."""
        return self.law_of(self.drafter.tree, positions, tokens, parents)
