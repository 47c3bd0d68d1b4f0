"""What a discrete model must have to be decoded. Anything with these members can be; nothing is inherited."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

FINAL = -2  # the parent of a tree's node whose token is final, see `TokenModel.tree`
Encoder = Callable[[list[str]], dict[str, Tensor]]  # turns captions into what a model is conditioned on, a row each


class TreePass(NamedTuple):
    """A pass over a tree: what follows its nodes, and what `keep` takes."""

    logits: Tensor  # [B, S, V] after each node
    tokens: Tensor  # [B, S] the nodes, as they were given
    positions: Tensor  # [B, S]
    parents: Tensor  # [B, S]
    hidden: Tensor | None = None  # [G, S, dim] hidden states before the output layer, of rows that are not released
    state: Any = None  # what the model needs to keep nodes


class TokenModel(Protocol):
    """A batch of sequences to decode, whose prompts have been read.

    vocab   number of tokens, V
    length  positions to decode, L (0-based; -1 is the last token of the prompt)
    width   positions in a row of the image, line separators included
    forced  [L] int64: the token that the grammar forces at a position, or -1 where the model chooses

    Some methods also need:

    static      True if shapes are those of (batch, window) alone: decoders then do not shrink a window at the end of an
                image. Such a model has `attend(positions)`: its passes read no more positions until the next call; and
                `prefix`, another number when its buffers have moved (`parity_decoders.captured`)
    grid        a `Grid`, where rows are not all of one `width` (`parity_decoders.grid`)
    codebook    [V, D] unit vectors of the image tokenizer, raw_codebook [V, D] as stored, embeddings [V, D] of the
                model's own input: which tokens look alike
    draft       a smaller TokenModel of the same vocab, length, width, forced and rows
    heads       a `Heads`
    drafter     a `Drafter` join(rows [B] bool on the CPU, fresh)   restarts these rows as those of another model, which
    has read its prompts release(done [B] bool)                  these rows are done: what the model computes of them is
    arbitrary from now on queue       asks for `join` (`parity.decode.loop.Queue`)"""

    vocab: int
    length: int
    width: int
    forced: Tensor

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the distributions at positions + 1, given `tokens` at positions [B, S] and the
        tokens fed before.

        Tokens are stored by position and replaced when fed again, so rolling back costs nothing. A query sees positions
        up to its own. Rows may be at different positions. Slots past a row's end may repeat position L - 1. A hole is a
        position before a query's that was never fed. Its content changes nothing: a network masks it; `TabularModel`,
        whose distributions have no gaps, reads token 0.
        """
        ...

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> TreePass:
        """Compute logits of several continuations in one pass: tokens, positions, parents [B, S].

        Node s follows node parents[b, s] < s of this call or, if that is -1 or FINAL, the stored tokens before its
        position. The first node must be of the latter kind, at the first open position less one or before it. FINAL
        says that the node's token is final: all nodes whose first ancestor is after it see it, in place of what is
        stored at its position. Nothing is stored until `keep`. Nodes past a row's end have arbitrary distributions.
        """
        ...

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the tokens of nodes [B, W] of a tree, -1 for none, at their positions; no other pass was made since."""
        ...


class Drafter(Protocol):
    """A network that continues the target's features, its hidden states before the output matrix (EAGLE): cheap
    distributions of the tokens that come next."""

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the features after nodes [R, W] of a tree of the target, -1 for none, by position."""
        ...

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the distributions at positions + 1 from final tokens at positions [B, S], each
        with the feature that the target has of position `sources` [B, S] (fresh: positions - 1; an older one is stale).

        Tokens are stored by position, like the target's. The last slot is the last final token; a new tree begins below
        it.
        """
        ...

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] of more nodes of the tree: tokens, positions, parents [B, S]. Nodes are numbered in
        the order of the calls since `logits`; a node follows an earlier call's node, or at -1 the last final token, and
        takes its predicted feature."""
        ...


class Heads(Protocol):
    """Heads that continue the target's features without attention: to the right by a token, and one row down."""

    def continue_tree(self, tree: TreePass) -> Tensor:
        """Compute logits [B, S, V] after the nodes of a tree of the target, each from the feature that the target has
        before it."""
        ...

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the features after nodes [B, W] of a tree of the target, at consecutive positions, and predict from
        them those of the row below the last of these positions."""
        ...

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the distributions at positions + 1, from tokens at positions [B, S] and the
        features stored before them."""
        ...

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] after the nodes of a tree: tokens, positions, parents [B, S]: those of earlier calls
        since `logits`, then new ones, whose parents are among the former. A node continues the feature predicted at its
        parent or, at -1, the one stored before its position."""
        ...


class DraftedModel(TokenModel, Protocol):
    """A token model with a drafter, and the codebook that says which tokens look alike."""

    codebook: Tensor
    raw_codebook: Tensor

    @property
    def drafter(self) -> Drafter: ...


def find_visible_nodes(parents: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Find which nodes of a tree each node sees [B, S, S] bool: itself, its ancestors, and FINAL ones before its first
    ancestor. Also returns that ancestor's position [B, S]. parents, positions [B, S]."""
    ancestors = find_ancestors(parents)
    root = (positions[:, None] * (ancestors & (parents < 0)[:, None])).sum(-1)
    return ancestors | (parents == FINAL)[:, None] & (positions[:, None] < root[..., None]), root


def find_ancestors(parents: Tensor) -> Tensor:
    """Find the ancestors [B, S, S] bool of tree nodes with parents [B, S], -1 for none: at [b, i, j] whether node j is
    node i or one above it."""
    S = parents.shape[1]
    reached = torch.eye(S, dtype=torch.float32, device=parents.device).repeat(len(parents), 1, 1)
    reached.scatter_add_(2, parents.clamp(min=0)[..., None], (parents >= 0).float()[..., None])
    for _ in range((S - 1).bit_length()):  # each squaring doubles the reach
        reached = (reached @ reached).clamp_(max=1)
    return reached > 0
