"""Companions of a target that are made here, of any family: a drafter and heads that continue its features."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.models.discrete.cached import Cached, DrafterContext, DrafterNet


class Sizes(Protocol):
    """The sizes of a target that its companions have too."""

    @property
    def dim(self) -> int:
        """The width of its hidden states."""

    @property
    def hidden(self) -> int:
        """The width inside a feed-forward."""

    @property
    def eps(self) -> float:
        """What RMSNorm adds."""


class FeedForward(nn.Module):
    """The gated feed-forward of LlamaGen and Llama."""

    def __init__(self, c: Sizes):
        super().__init__()
        self.w1, self.w3 = nn.Linear(c.dim, c.hidden, bias=False), nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class FeatureDrafter(DrafterNet):
    """Ours: it reads the picture alone, by the target's own embeddings."""

    def __init__(self, c: Sizes, layer: nn.Module):
        """Build the drafter of a target of these sizes around `layer`, of the target's own kind."""
        super().__init__()
        self.fc = nn.Linear(2 * c.dim, c.dim, bias=False)
        self.layer = layer
        self.norm = nn.RMSNorm(c.dim, c.eps)

    def make_context(self, target: Cached, ids: Tensor | None = None) -> DrafterContext:
        empty = target.prefix_states[:, :0]
        return DrafterContext(target.embeddings, empty, empty, empty.any(-1), target.shift - target.prefix)


class Head(nn.Module):
    """A linear map and an MLP from features, or from features beside embeddings, to features."""

    def __init__(self, c: Sizes, n_inputs: int):
        """Build the head of a target of these sizes, for `n_inputs` inputs of the target's width."""
        super().__init__()
        self.fc = nn.Linear(n_inputs * c.dim, c.dim, bias=False)
        self.feed_forward = FeedForward(c)
        self.ffn_norm, self.norm = nn.RMSNorm(c.dim, c.eps), nn.RMSNorm(c.dim, c.eps)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = self.fc(torch.cat(inputs, -1))
        return self.norm(x + self.feed_forward(self.ffn_norm(x)))


class Heads(nn.Module):
    """Heads that continue the target's features to the right and downwards, without attention. After Spatially
    Speculative Decoding (arXiv 2606.20543), as others describe it: its paper and code were not at hand.

    right(features, embeddings)  from the feature that predicts a token, and the token: that which predicts the next one
    below(features)              from the feature after a token: that which predicts the token below it
    """

    def __init__(self, c: Sizes):
        """Build the heads of a target of these sizes."""
        super().__init__()
        self.right = Head(c, 2)
        self.below = Head(c, 1)
