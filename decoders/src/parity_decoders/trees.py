"""Trees of drafts: several continuations of what is final, evaluated in one pass of the target."""

from typing import NamedTuple

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError
from parity_decoders.protocols.discrete import TreePass, find_ancestors
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.steps import Step
from parity_decoders.verification import make_probs

MOST = 4096  # nodes of a tree


def check_nodes(options: str, nodes: int) -> None:
    """Raise DecodingError that names a method's options if their tree has more than MOST nodes."""
    if nodes > MOST:
        raise DecodingError(f"{options}: a tree of {nodes} nodes; allowed: at most {MOST}")


class Candidates(NamedTuple):
    """T nodes a row; siblings stand in the order in which they are tried, parents before their children."""

    tokens: Tensor  # [B, T]
    parents: Tensor  # [B, T] nodes of this tree, -1 for the last final token
    depth: Tensor  # [B, T] from 1
    score: Tensor  # [B, T] log-probability of the path to the node, under the drafter


class Tree:
    """The S nodes of one pass. Node 0 is the last final token, a node's parent comes before it.

    tokens, parents, positions [B, S]; offset [B, S] how far a node stands after node 0
    nodes    [S] their numbers
    above    [B, S] parents, node 0 for itself
    missing  [B, S] bool, nodes that do not exist
    follows  [B, S] parents, S where a node is missing
    """

    def __init__(self, line: SequenceBuffer, drafts: Tensor, parents: Tensor, offset: Tensor):
        """Set the nodes: node 0 is the last final token.

        drafts [B, S - 1]: the tokens of the other nodes, -1 for a missing one, as in a row's first pass;
        parents [B, S], -1 for node 0; offset [B, S] or [S].
        """
        self.line = line
        self.parents = parents
        self.tokens = torch.cat([line.read_last_token(), drafts], 1)
        self.missing = self.tokens < 0
        self.tokens, self.follows = self.tokens.clamp(min=0), parents.masked_fill(self.missing, parents.shape[1])
        self.offset = offset.expand_as(self.tokens)
        self.positions = line.frontier[:, None] - 1 + offset
        self.nodes = torch.arange(parents.shape[1], device=parents.device)
        self.above = parents.clamp(min=0)

    def evaluate(self) -> tuple[Tensor, TreePass]:
        """Compute p [B, S, V], the target's distribution after each node, in one pass; also returns what `keep`
        takes."""
        evaluated = self.line.model.tree(self.tokens, self.positions, self.parents)
        return make_probs(evaluated.logits), evaluated

    def hold_throughout(self, holds: Tensor) -> Tensor:
        """Return [B, S] bool: whether `holds` [B, S] bool is true of a node and of all its ancestors but node 0, of
        which it is not asked."""
        up = torch.where(holds, self.above, self.nodes)  # where it is not true, nothing leads further up
        for _ in range((len(self.nodes) - 1).bit_length()):  # each turn doubles how far up a node leads
            up = up.gather(1, up)
        return up == 0

    def follow(self, drawn: Tensor) -> Tensor:
        """Mark the nodes [B, S] bool that hold, as do all their ancestors, the token drawn after their parent: drawn
        [B, S], one after each node. They are a single path from node 0 if no two children of a node hold the same
        token."""
        return self.hold_throughout(drawn.gather(1, self.above) == self.tokens.masked_fill(self.missing, -1))

    def count_evaluated(self, first: int = 0) -> Tensor:
        """Count the existing nodes [B], from number `first` on, that predict a position which the row still has to
        draw."""
        return (~self.missing & (self.positions < self.line.end - 1))[:, first:].sum(1)

    def advance(self, evaluated: TreePass, tokens: Tensor, nodes: Tensor, count: Tensor | None = None) -> Step:
        """Let the model keep the nodes [B, W], -1 for none, whose tokens are final, and return the step. evaluated: of
        `evaluate`; tokens [B, W]: those of these nodes without node 0, then the one drawn after the last; count [B]:
        how many nodes were evaluated (None: all)."""
        self.line.model.keep(evaluated, nodes)
        return self.line.advance(tokens, (nodes >= 0).sum(1), self.count_evaluated() if count is None else count)


def make_tree(line: SequenceBuffer, candidates: Candidates) -> Tree:
    """Make the tree of a pass: the last final token with the candidates below it."""
    root = torch.zeros_like(line.frontier)[:, None]
    parents = torch.cat([root - 1, candidates.parents + 1], 1)
    return Tree(line, candidates.tokens, parents, torch.cat([root, candidates.depth], 1))


def find_leaves(tree: Candidates) -> Tensor:
    """Mark the leaves [B, T] bool: nodes without children that the drafter's distribution allows. Their paths are the
    candidate sequences. Where fewer tokens are possible than a tree is wide (the grammar forces one), impossible ones
    fill it up; these are no leaves."""
    T = tree.parents.shape[1]
    inner = torch.zeros_like(tree.parents[:, :1], dtype=torch.bool).repeat(1, T + 1)
    has_children = inner.scatter(1, torch.where(tree.parents < 0, T, tree.parents), True)[:, :T]
    return ~has_children & (tree.score > -torch.inf)


def find_likeliest(tree: Candidates) -> Tensor:
    """Find the leaf [B] whose path is likeliest under the drafter."""
    return torch.where(find_leaves(tree), tree.score, -torch.inf).argmax(1)


def trace_path(tree: Candidates, leaf: Tensor, depth: int) -> Tensor:
    """List the nodes [B, depth] on the path from the top down to the node `leaf` [B], padded with -1."""
    on_path = find_ancestors(tree.parents).gather(1, leaf[:, None, None].expand(-1, 1, tree.parents.shape[1]))[:, 0]
    path = torch.full((len(leaf), depth + 1), -1, device=leaf.device)
    slots = torch.where(on_path, tree.depth - 1, depth)
    return path.scatter(1, slots, torch.arange(on_path.shape[1], device=leaf.device).expand_as(slots))[:, :depth]


def count_sequences(tree: Candidates, chosen: Tensor) -> Tensor:
    """Count through how many of the chosen candidate sequences each node lies, [B, T]. chosen [B, T] is 1 at their
    leaves, else 0."""
    return (chosen[:, None] @ find_ancestors(tree.parents).to(chosen.dtype))[:, 0]
