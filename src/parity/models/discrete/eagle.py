"""EAGLE's drafter for LlamaGen: one layer that continues the target's features (Li et al. 2024, sec. 4.1)."""

import torch
from torch import Tensor, nn

from parity.models.discrete.cached import Cached, at_rows, close_up, staying
from parity.models.discrete.transformer import Block, LlamaGenConfig, Remember, RMSNorm
from parity.models.discrete.trees import ancestors


class FeatureDrafter(nn.Module):
    """A token's embedding and the feature that predicted it to the feature that predicts the next; all [B, S, dim]."""

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.fc, self.layer, self.norm = nn.Linear(2 * c.dim, c.dim, bias=False), Block(c), RMSNorm(c.dim, c.eps)

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor:
        return self.norm(self.layer(self.fc(torch.cat([embeddings, features], -1)), table, mask, remember))


class EagleDrafter:
    """A `protocol.Drafter` of a batch that is being decoded; it makes the target keep its features by position.

    The drafter sees the picture alone: what it knows of the caption is in the features.
    """

    def __init__(self, net: FeatureDrafter, target: Cached):
        c, rows = target.net.config, len(target.last)
        self.net, self.target = net, target
        # at position + 1; the target writes them
        self.features = target.features = target.last.new_zeros(rows, target.length + 1, c.dim)
        shape = (rows, target.length, c.heads, c.dim // c.heads)
        self.keys, self.values = target.last.new_zeros(shape), target.last.new_zeros(shape)
        self.table = target.net.table[c.prefix :]
        # rows whose pictures are not done: keys and values hold these alone
        self.going = torch.arange(rows, device=target.last.device)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """tokens, positions, sources [R, S] -> logits [R, S, V]; see Drafter."""
        left, B = staying(self.going, positions, self.target.length), len(tokens)
        if left is not None:
            self.going, self.keys, self.values = (close_up(x, left) for x in (self.going, self.keys, self.values))
        tokens, positions, sources = tokens[self.going], positions[self.going], sources[self.going]
        self.rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        features = self.features[self.going[:, None], sources.clamp(min=-1) + 1]
        mask = (torch.arange(self.target.length, device=positions.device) <= positions[..., None])[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[self.rows, positions], self.values[self.rows, positions] = k, v
            return self.keys, self.values

        table = self.table[positions].to(features.dtype)
        output = self.net(self.target.embeddings[tokens], features, table, mask, remember)
        self.last = positions[:, -1:]
        self.shown: list[Tensor] = []  # parents of the tree's nodes, call by call
        self.beside: list[tuple[Tensor, Tensor]] = []  # and their keys and values
        self.predicted = output[:, -1:]  # features: of the last token written, then of the tree's nodes
        return at_rows(self.target.net.output(output), self.going, B)

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; see Drafter."""
        B, S = tokens.shape
        tokens, parents, positions = (x[self.going] for x in (tokens, parents, positions))
        at = positions.clamp(max=self.target.length - 1)
        self.shown.append(parents)
        above = ancestors(torch.cat(self.shown, 1))[:, -S:]
        written = (torch.arange(self.target.length, device=at.device) <= self.last)[:, None].expand(-1, S, -1)
        mask = torch.cat([written, above], -1)[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.beside.append((k, v))
            keys, values = (torch.cat(x, 1) for x in zip(*self.beside, strict=True))
            return torch.cat([self.keys, keys], 1), torch.cat([self.values, values], 1)

        features = self.predicted[self.rows, parents + 1]
        output = self.net(self.target.embeddings[tokens], features, self.table[at].to(features.dtype), mask, remember)
        self.predicted = torch.cat([self.predicted, output], 1)
        return at_rows(self.target.net.output(output), self.going, B)
