"""LANTERN++: a static tree of candidates drawn from the drafter, verified with a multiplicative budget for
nearest tokens."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from parity_decoders.candidates import DrawnTree, draw_tree, list_levels, make_harmonic_shape, read_tokens
from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import DraftedModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials, make_trials
from parity_decoders.steps import Step
from parity_decoders.trees import Tree, check_nodes
from parity_decoders.verification import find_nearest_tokens, is_idle_on_cpu, verify_siblings

CLAIM = "lossy"
REFILLS = True
NEEDS = "drafter"
SOURCE = "Park et al. 2025 (LANTERN++); the shape of its static tree is not published, `make_harmonic_shape` is ours"


def accept_candidates(
    p: Tensor, drafts: DrawnTree, children: Tensor, u: Tensor, exponential: Tensor, nearest_tokens: Tensor, relax: float
) -> tuple[Tensor, Tensor]:
    """Descend the tree as long as a candidate is accepted. Returns the path [B, at most D + 2] of nodes, padded with
    -1, and the tokens [B, D + 1] after node 0: those of the path, then one drawn, then arbitrary ones.

    p [B, S, V] after each node; children [S, K], -1 for none; u [B, D + 1, K], exponential [B, D + 1, V] by position;
    nearest_tokens, relax: as in `verify_siblings`.
    """
    rows = torch.arange(len(p), device=p.device)
    probs_of = (children[:, 0] >= 0).cumsum(0) - 1
    node, descending = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
    path = [node]
    tokens = torch.zeros_like(exponential[..., 0], dtype=torch.int64)
    no_point = ~descending
    for d in range(u.shape[1]):
        child_nodes = children[node]
        nodes = child_nodes.clamp(min=1)  # a missing child is replaced by any node, and not valid
        valid = (child_nodes >= 0) & drafts.valid.gather(1, nodes)
        candidates = drafts.tokens.gather(1, nodes)
        inputs = (
            p[rows, node],
            drafts.probs[rows, probs_of[node]],
            candidates,
            valid,
            no_point,
            u[:, d],
            exponential[:, d],
        )
        tokens[:, d], rank = verify_siblings(*inputs, nearest_tokens, relax)
        descending = descending & (rank >= 0)
        node = torch.where(descending, nodes.gather(1, rank.clamp(min=0)[:, None])[:, 0], node)
        path.append(torch.where(descending, node, -1))
        if is_idle_on_cpu(descending):
            break
    return torch.stack(path, 1), tokens


@torch.inference_mode()
def lantern_pp(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    breadth: Annotated[int, Interval(ge=1, le=16)] = 4,
    depth: Annotated[int, Interval(ge=1, le=16), Counts("positions", small=2)] = 4,
    k: Annotated[int, Interval(ge=1, le=65536), Counts("tokens", most="vocab - 1")] = 100,
    relax: Annotated[float, Interval(ge=0, le=100)] = 2.0,
    space: Literal["unit", "raw"] = "unit",
) -> Iterator[Step]:
    """Verify a static tree whose siblings are drawn from the drafter's distribution q without replacement, so
    acceptance compares p with q. `relax: 0` is exact.

    breadth  children of the last final token; a path of ranks r1, r2, ... (from 1) is in the tree if their product is
             at most that
    depth    nodes on the longest path
    k        nearest tokens of a token, as in `lantern`
    space    as in `lantern`
    relax    lambda: nearest tokens may add lambda p(x) to a candidate's p(x)
    """
    V = model.vocab
    line = SequenceBuffer(model, start, depth + 1)
    shape = make_harmonic_shape(min(breadth, model.vocab), depth)
    check_nodes(f"lantern_pp: breadth {breadth}, depth {depth}", len(shape.parents))
    nearest_tokens = find_nearest_tokens(model.codebook if space == "unit" else model.raw_codebook, k)
    tree_levels = list_levels(shape, V, start.device)
    parents, offset = (
        torch.tensor(x, device=start.device).expand(len(start), -1) for x in (shape.parents, shape.depth)
    )
    lists = [torch.tensor(c, dtype=torch.int64, device=start.device) for c in shape.children]
    children = pad_sequence(lists, True, -1)
    # Each position is decided in a single pass, so its number is enough to key its random numbers.
    exponential = make_exponentials(line, noise)
    uniform = make_trials(line, noise, children.shape[1])

    def run_pass() -> Step:
        probs = read_tokens(model.drafter, line.tokens, line.last_frontier, line.frontier, depth + 1)
        drafts = draw_tree(model.drafter, probs, line.frontier - 1, shape, tree_levels, noise, line.age - 1)
        # a row's first pass has no feature to draft from
        drafts = drafts._replace(valid=drafts.valid & (line.age > 0))
        tree = Tree(line, line.mask_new_rows(drafts.tokens[:, 1:]), parents, offset)
        e = exponential.take_next(depth + 1)
        u = uniform.take_next(depth + 1)
        p, evaluated = tree.evaluate()
        path, tokens = accept_candidates(p, drafts, children, u, e, nearest_tokens, relax)
        return tree.advance(evaluated, tokens, path)

    return Passes(line, run_pass)
