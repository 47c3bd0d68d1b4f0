"""Trees that a drafter proposes below the last final token: EAGLE-2's dynamic one, LANTERN++'s static one."""

from typing import NamedTuple

import torch
from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import Drafter, TreePass
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.trees import Candidates
from parity_decoders.verification import make_probs


def grow_dynamic_tree(drafter: Drafter, logits: Tensor, root: Tensor, total: int, depth: int, top_k: int) -> Candidates:
    """Grow EAGLE-2's tree (Li et al. 2024, sec. 4): expand the `top_k` likeliest nodes of each of `depth` levels by
    their `top_k` likeliest tokens, then keep the `total` likeliest nodes of all levels.

    logits [B, V]: the drafter's after the last final token, which is at position `root` [B] and has been read.
    """
    B = len(logits)
    K = min(top_k, logits.shape[-1])
    device = logits.device
    best = logits.log_softmax(-1).topk(K)
    tokens = best.indices
    score = best.values.clamp(max=0)
    parents = torch.full((B, K), -1, device=device)
    levels = [(tokens, parents, torch.ones_like(tokens), score)]
    frontier = torch.arange(K, device=device).expand(B, -1)  # the nodes that are expanded next
    shown_parents = parents  # their parents, in the drafter's numbers: the order in which it was shown nodes
    count = K
    for d in range(1, depth):
        probs = drafter.tree(tokens, (root + d)[:, None].expand(-1, K), shown_parents).log_softmax(-1)
        best = probs.topk(K)
        grown = (score[..., None] + best.values.clamp(max=0)).flatten(1)  # [B, K * K]
        children = best.indices.flatten(1)
        levels.append((children, frontier.repeat_interleave(K, 1), torch.full_like(children, d + 1), grown))
        chosen = grown.topk(K)
        score = chosen.values
        tokens = children.gather(1, chosen.indices)
        frontier = count + chosen.indices
        shown_parents = (d - 1) * K + chosen.indices // K
        count += K * K
    return _keep_likeliest(Candidates(*(torch.cat(x, 1) for x in zip(*levels, strict=True))), total)


def _keep_likeliest(tree: Candidates, total: int) -> Candidates:
    """Keep the `total` likeliest nodes, renumbered in their old order. No child is likelier than its parent and ties go
    to the earlier node, so the ancestors of a node are kept with it."""
    B, count = tree.tokens.shape
    chosen = tree.score.sort(descending=True, stable=True).indices[:, :total].sort(-1).values
    number = torch.full((B, count + 1), -1, device=chosen.device)
    number = number.scatter(1, chosen, torch.arange(chosen.shape[1], device=chosen.device).expand(B, -1))
    parents = torch.where(tree.parents < 0, count, tree.parents)
    return Candidates(*(x.gather(1, chosen) for x in tree._replace(parents=number.gather(1, parents))))


def read_tokens(
    drafter: Drafter, line: Tensor, first: Tensor, end: Tensor, max_tokens: int, lag: Tensor | int = 0
) -> Tensor:
    """Let the drafter read the tokens at positions `first` [B] to end [B] - 1, at most `max_tokens` of them, and return
    its logits [B, V] after the last.

    line [B, ...]: the token at position i is line[:, i + 1]. Each is read together with the feature that predicted it,
    or with the feature `lag` positions before that. A row with fewer tokens reads its last one again.
    """
    positions = (first[:, None] + torch.arange(max_tokens, device=line.device)).minimum((end[:, None] - 1).clamp(min=0))
    return drafter.logits(line.gather(1, positions + 1), positions, positions - 1 - lag)[:, -1]


def draft_tree(
    drafter: Drafter,
    line: SequenceBuffer,
    size: tuple[int, int, int],
    max_tokens: int,
    first: Tensor,
    end: Tensor,
    lag: Tensor | int = 0,
) -> Candidates:
    """Draft an EAGLE-2 tree of size (total, depth, top_k) after position end - 1. The drafter first reads the tokens
    from position `first` on (see `read_tokens`). A row in its first pass gets no candidates, because there is no
    feature to draft from."""
    tree = grow_dynamic_tree(drafter, read_tokens(drafter, line.tokens, first, end, max_tokens, lag), end - 1, *size)
    return tree._replace(tokens=line.mask_new_rows(tree.tokens))


class NoiseDrafter:
    """A drafter whose logits rank tokens by their chance to be drawn under the noise, not by their
    probability. The candidates then depend on the noise, so only decoders whose tokens do not depend on their
    candidates may use it."""

    def __init__(self, drafter: Drafter, exponential: Tensor, first: Tensor, sharp: float):
        """Wrap a drafter.

        exponential [B, D, V]: the unit exponentials of the positions from `first` [B] on; sharp: temperature of
        log(distribution / exponential), small where the drafter's distributions are close to the target's.
        """
        self.drafter = drafter
        self.log = exponential.log()
        self.first = first
        self.sharp = sharp
        self.rows = torch.arange(len(first), device=first.device)[:, None]

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store features. See Drafter."""
        self.drafter.keep(tree, nodes)

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """Compute draw scores [B, 1, V] after the last token alone. See Drafter."""
        probs = self.drafter.logits(tokens, positions, sources)[:, -1:]
        return (probs.log_softmax(-1) - self.log[:, :1]) / self.sharp

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute draw scores [B, S, V] after each node. See Drafter."""
        probs = self.drafter.tree(tokens, positions, parents).log_softmax(-1)
        return (probs - self.log[self.rows, positions + 1 - self.first[:, None]]) / self.sharp


class Shape(NamedTuple):
    """A tree that is the same for every row and pass: its nodes level by level, node 0 the last final token."""

    parents: list[int]  # parent of each node, -1 for node 0
    depth: list[int]
    children: list[list[int]]  # children of each node, in order of rank


def make_harmonic_shape(width: int, depth: int) -> Shape:
    """Make the static tree of up to `depth` levels that holds a path of ranks r_1, r_2, ... (from 1) if their product
    is at most `width`."""
    tree = Shape([-1], [0], [[]])
    products = [1]
    node = 0
    while node < len(products):
        for rank in range(1, width // products[node] + 1 if tree.depth[node] < depth else 1):
            tree.children[node].append(len(products))
            products.append(products[node] * rank)
            tree.parents.append(node)
            tree.depth.append(tree.depth[node] + 1)
            tree.children.append([])
        node += 1
    return tree


class DrawnTree(NamedTuple):
    """Candidates of a static tree, drawn from the drafter."""

    tokens: Tensor  # [B, S], undefined for node 0
    valid: Tensor  # [B, S] bool: the distribution had another token for the node
    probs: Tensor  # [B, I, V] q that the children were drawn from, for each of the I nodes with children


class Level(NamedTuple):
    """Nodes of a static tree whose children are drawn together, all of one depth."""

    nodes: Tensor  # [n]
    parents: Tensor  # [n] in the drafter's numbers: the order in which it was shown nodes
    depth: int
    max_children: int  # the most children of one of them
    children: Tensor  # [c] children; owner [c]: whose it is, from 0 to n - 1; rank [c]: which of the owner's children
    owner: Tensor
    rank: Tensor


def list_levels(shape: Shape, V: int, device: torch.device) -> list[Level]:
    """List the levels of a tree whose nodes have children, from node 0 down; of more than V children of a node, V are
    listed."""
    levels = []
    shown = {0: -1}
    level = [0]
    while level:
        max_children = min(max(len(shape.children[node]) for node in level), V)
        triples = [
            (c, i, rank) for i, node in enumerate(level) for rank, c in enumerate(shape.children[node][:max_children])
        ]
        shown_parents = [shown[shape.parents[node]] if node else -1 for node in level]
        nodes, parents, *child = (
            torch.tensor(x, device=device) for x in (level, shown_parents, *zip(*triples, strict=True))
        )
        levels.append(Level(nodes, parents, shape.depth[level[0]], max_children, *child))
        if level != [0]:
            first = len(shown) - 1
            shown |= {node: first + i for i, node in enumerate(level)}
        level = [c for node in level for c in shape.children[node] if shape.children[c]]
    return levels


def draw_tree(
    drafter: Drafter, logits: Tensor, root: Tensor, shape: Shape, tree: list[Level], noise: Noise, step: Tensor
) -> DrawnTree:
    """Draw the children of each node from the drafter's distribution without replacement (LANTERN++, Park et al. 2025);
    a child is not `valid` if its parent's distribution has no other token left.

    logits [B, V]: the drafter's distribution after the last final token, which is at position `root` [B]; tree: the
    levels of the shape; step [B, 1] numbers the row's pass.
    """
    (B, V) = logits.shape
    S = len(shape.parents)
    tokens = torch.zeros(B, S, dtype=torch.int64, device=logits.device)
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    probs: list[Tensor] = []
    inner = step * S + torch.cat([level.nodes for level in tree])  # each node with children has its number
    exponentials = noise.exponential("draft", inner, V).split([len(level.nodes) for level in tree], 1)
    for level, exponential in zip(tree, exponentials, strict=True):
        if probs:
            positions = (root + level.depth)[:, None].expand(-1, len(level.nodes))
            node_logits = drafter.tree(tokens[:, level.nodes], positions, level.parents.expand(B, -1))
            probs.append(make_probs(node_logits))
        else:
            probs.append(make_probs(logits)[:, None])
        best = (probs[-1] / exponential).topk(level.max_children)
        tokens[:, level.children] = best.indices[:, level.owner, level.rank]
        valid[:, level.children] = best.values[:, level.owner, level.rank] > 0
    return DrawnTree(tokens, valid, torch.cat(probs, 1))
