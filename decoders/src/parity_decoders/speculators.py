"""Speculators that continue a target's hidden states, its features: the drafter of EAGLE, and heads without attention.

A network of each, of any target, and the state that it keeps of a batch. What they read of the target's passes is
handed to them, as a `TreePass`."""

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_decoders.cache import ActiveRows, SlotCache, compact_rows, list_kept
from parity_decoders.engine import Network, make_additive, run_in_inference
from parity_decoders.protocols.discrete import TreePass, find_ancestors


class Sizes(Protocol):
    """The sizes of a target that its speculators have too."""

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


class DrafterContext(NamedTuple):
    """What a drafter reads of a batch before the image: the caption, if it reads that, a slot for each of its positions
    but the last."""

    embeddings: Tensor  # [V, dim] of the image's tokens
    words: Tensor  # [R, before, dim] embeddings of the caption's tokens, each beside the feature that predicted it
    features: Tensor  # [R, before, dim] the features that predicted the caption's tokens
    on: Tensor  # [R, before] bool: whether a slot is attended
    padding: Tensor  # [R, 1] how many places a row's slots stand before those of the target's positions


class DrafterNet(nn.Module):
    """EAGLE's network (Li et al. 2024, sec. 4.1): one layer that continues the target's features. It maps a token's
    embedding and the feature that predicted it to the feature that predicts the next token, all [B, S, dim].

    layer   of the target's kind, called as transformers calls its layers; rotary: makes its position embeddings
    """

    fc: nn.Linear
    layer: nn.Module
    norm: nn.Module
    rotary: nn.Module

    def forward(
        self, embeddings: Tensor, features: Tensor, position_ids: Tensor, mask: Tensor, cache: Any = None
    ) -> Tensor:
        """Compute the next features of tokens at position_ids [B, S]; mask [B, 1, S, T]: what each sees, in the cache
        if there is one."""
        x = self.fc(torch.cat([embeddings, features], -1))
        out = self.layer(
            x, attention_mask=mask, position_embeddings=self.rotary(x, position_ids), past_key_values=cache
        )
        return self.norm(out[0] if isinstance(out, tuple) else out)

    def make_context(self, target: Network, ids: Tensor | None = None) -> DrafterContext:
        """Make what the drafter reads of a batch; ids [R, P] of the prompts, if they are words."""
        raise NotImplementedError


class FeatureDrafter(DrafterNet):
    """Ours: it reads the image alone, by the target's own embeddings. The caption reaches it through the features."""

    def __init__(self, c: Sizes, layer: nn.Module, rotary: nn.Module):
        """Build the drafter of a target of these sizes around a layer of the target's own kind."""
        super().__init__()
        self.fc = nn.Linear(2 * c.dim, c.dim, bias=False)
        self.layer = layer
        self.rotary = rotary
        self.norm = nn.RMSNorm(c.dim, c.eps)

    def make_context(self, target: Network, ids: Tensor | None = None) -> DrafterContext:
        empty = target.last[:, :0]
        return DrafterContext(target.embeddings, empty, empty, empty.any(-1), target.padding - target.prefix)


class EagleDrafter:
    """A `Drafter` of a batch that is being decoded."""

    def __init__(self, net: DrafterNet, target: Network, ids: Tensor | None = None):
        """Make room for features, and read the caption if `net` does. ids [R, P]: its words."""
        context = net.make_context(target, ids)
        self.net = net
        self.output = target.model.output
        self.embeddings = context.embeddings
        self.padding = context.padding.clone()
        self.length = target.length
        self.active = ActiveRows(len(self.padding), self.padding.device)
        self.cache = SlotCache(1, context.on, target.length, target.static)
        # [R, L + 1, dim] of the target, at index position + 1
        self.features = target.last.new_zeros(len(self.padding), target.length + 1, target.last.shape[-1])
        # of the tree that grows: what its nodes see before it, their parents, and features: of the last token, of nodes
        self.written, self.parents, self.predicted = context.on[:, :0], context.on[:, :0].long(), self.features[:, :0]
        if n := self.cache.prefix:
            slots = torch.arange(n, device=self.padding.device).expand(len(self.padding), -1)
            with run_in_inference():
                visible = self.cache.begin_pass(slots, self.cache.find_visible(slots, n))
                self.run(context.words, context.features, slots, visible)

    def run(self, embeddings: Tensor, features: Tensor, places: Tensor, visible: Tensor) -> Tensor:
        """Run the network on embeddings and features [G, S, dim] of tokens that stand at places [G, S] and see the
        slots visible [G, S, T]."""
        mask = make_additive(visible, features.dtype)
        out: Tensor = self.net(embeddings, features, (places - self.padding).clamp(min=0), mask, self.cache)
        return out

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the features after nodes [R, W] of a tree of the target. See Drafter."""
        assert tree.hidden is not None
        with run_in_inference():
            row, node = list_kept(self.active.select(nodes)[0], self.cache.static)
            places = tree.positions.clamp(max=self.length - 1)[row, node] + 1
            self.features[self.active.index[row], places] = tree.hidden[row, node]

    def join(self, rows: Tensor, fresh: "EagleDrafter") -> None:
        """Restart the rows [R] bool as those of `fresh`, without features."""
        with run_in_inference():
            index, gap, more = self.cache.take_prompts(rows, fresh.cache)
            self.padding = self.padding + more
            self.padding[index] = fresh.padding + gap
            self.features[index] = 0

    def release(self, done: Tensor) -> None:
        """Compute the rows that are `done` [R] bool no more. See TokenModel."""
        with run_in_inference():
            if (active := self.active.drop(done)) is not None:
                self.cache.drop_rows(active)
                self.padding = compact_rows(self.padding, active)

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """Compute logits [R, S, V] after final tokens at positions [R, S], each with the target's feature of position
        `sources` [R, S]; the next tree begins after the last."""
        with run_in_inference():
            R = len(tokens)
            tokens, positions, sources = self.active.select(tokens, positions, sources)
            features = self.features[self.active.index[:, None], sources.clamp(min=-1) + 1]
            slots, visible = self.cache.feed(positions)
            out = self.run(self.embeddings[tokens], features, slots, visible)
            on = self.cache.on[:, : visible.shape[2]]
            self.written = (torch.arange(on.shape[1], device=on.device) <= slots[:, -1:]) & on
            self.parents, self.predicted = slots[:, :0], out[:, -1:]  # the tree has no nodes yet
            return self.active.restore(self.output(out), R)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after further nodes of the tree: tokens, positions, parents [R, S]. A parent is
        numbered from the first node since `logits`, or -1; its predicted feature is the node's."""
        with run_in_inference():
            R, S = tokens.shape
            tokens, positions, parents = self.active.select(tokens, positions, parents)
            places = positions.clamp(max=self.length - 1) + self.cache.prefix
            self.parents = torch.cat([self.parents, parents], 1)
            ancestors = find_ancestors(self.parents)[:, -S:]
            visible = torch.cat([self.written[:, None].expand(-1, S, -1), ancestors], 2)
            features = take_nodes(self.predicted, parents + 1)
            out = self.run(self.embeddings[tokens], features, places, self.cache.feed_nodes(visible, S))
            self.predicted = torch.cat([self.predicted, out], 1)
            return self.active.restore(self.output(out), R)


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


class FeatureHeads:
    """The `Heads` of a batch that is being decoded. They store features by the position of the token that these
    predict."""

    def __init__(self, net: Heads, target: Network):
        """Make room for features."""
        self.net = net
        self.output = target.model.output
        self.embeddings = target.embeddings
        self.width = target.width
        self.active = ActiveRows(len(target.last), target.last.device)
        # [R, L + 1, dim]; the last place is for all positions past the end, and stays 0
        self.features = target.last.new_zeros(len(target.last), target.length + 1, target.last.shape[-1])
        self.guessed = self.features[:, :0]  # [G, n, dim] after the nodes of a tree that grows

    def join(self, rows: Tensor, fresh: "FeatureHeads") -> None:
        """Restart the rows [R] bool as those of `fresh`, without features."""
        with run_in_inference():
            self.features[rows.nonzero()[:, 0].to(self.features.device)] = 0

    def release(self, done: Tensor) -> None:
        """Compute the rows that are `done` [R] bool no more. See TokenModel."""
        self.active.drop(done)

    def look_up(self, positions: Tensor) -> Tensor:
        """Look up the features [G, S, dim] that predict the tokens at positions [G, S]."""
        return self.features[self.active.index[:, None], positions.clamp(0, self.features.shape[1] - 1)]

    def continue_right(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Continue features [G, S, dim] to the right by tokens [G, S], which they predict."""
        out: Tensor = self.net.right(features, F.embedding(tokens, self.embeddings))
        return out

    def continue_tree(self, tree: TreePass) -> Tensor:
        """Compute logits [R, S, V] after the nodes of a tree of the target. See Heads."""
        assert tree.hidden is not None
        with run_in_inference():
            before = take_nodes(tree.hidden, tree.parents.clamp(min=0))
            features = torch.where((tree.parents < 0)[..., None], self.look_up(tree.positions), before)
            logits = self.output(self.continue_right(features, tree.tokens))
            return self.active.restore(logits, len(tree.logits))

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the features after nodes [R, W] of a tree of the target, and predict those of the next row."""
        assert tree.hidden is not None
        with run_in_inference():
            (nodes,) = self.active.select(nodes)
            L, width, rows = self.features.shape[1] - 1, self.width, self.active.index[:, None]
            places = (tree.positions.gather(1, nodes) + 1).clamp(max=L)
            self.features[rows, places] = take_nodes(tree.hidden, nodes)
            below = places[:, -1:] + 1 + torch.arange(width - 1, device=nodes.device)
            # the feature after a token is that which predicts the token to its right
            self.features[rows, below.clamp(max=L)] = self.net.below(self.look_up(below - width + 1))
            self.features[:, L] = 0  # several were written there

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [R, S, V] at positions + 1 from tokens at positions [R, S] and the features stored before."""
        with run_in_inference():
            R = len(tokens)
            tokens, positions = self.active.select(tokens, positions)
            guessed = self.continue_right(self.look_up(positions), tokens)
            self.guessed = guessed[:, :0]  # the tree has no nodes yet
            return self.active.restore(self.output(guessed), R)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after the nodes of a tree: tokens, positions, parents [R, S], see `Heads`."""
        with run_in_inference():
            R = len(tokens)
            tokens, positions, parents = self.active.select(tokens, positions, parents)
            n = self.guessed.shape[1]  # nodes of the calls before
            tokens, positions, parents = (x[:, n:] for x in (tokens, positions, parents))
            features = self.look_up(positions)
            if n:
                after = take_nodes(self.guessed, parents.clamp(min=0))
                features = torch.where((parents < 0)[..., None], features, after)
            self.guessed = torch.cat([self.guessed, self.continue_right(features, tokens)], 1)
            return self.active.restore(self.output(self.guessed), R)


def take_nodes(x: Tensor, nodes: Tensor) -> Tensor:
    """Take the entries [G, n, dim] of x [G, S, dim] at nodes [G, n]."""
    return x.gather(1, nodes[..., None].expand(-1, -1, x.shape[-1]))
