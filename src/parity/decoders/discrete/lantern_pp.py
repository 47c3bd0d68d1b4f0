"""LANTERN++: a static tree of candidates drawn from the drafter, verified with a multiplicative budget for
look-alikes."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.candidates import Drawn, Shape, drawn, harmonic, nothing_drawn, read_on
from parity.decoders.line import Line
from parity.decoders.steps import Step
from parity.decoders.trees import Tree
from parity.decoders.verification import look_alikes, verify_siblings
from parity.models.discrete.protocol import DraftedModel

CLAIM = "lossy"
NEEDS = "drafter"
SOURCE = "Park et al. 2025 (LANTERN++); the shape of its static tree is not published, `harmonic` is ours"


class Nodes(NamedTuple):
    """A shape by the numbers of its nodes in the target's pass, where 0 is the last final token."""

    children: Tensor  # [S, K] numbers in the shape, -1 for none
    law: Tensor  # [S] which of the drawn laws they are drawn from


def numbered(shape: Shape, device: torch.device) -> Nodes:
    children = torch.full((len(shape.parents) + 1, len(shape.children[-1])), -1)
    law = torch.zeros(len(shape.parents) + 1, dtype=torch.int64)
    for number, (parent, own) in enumerate(shape.children.items()):
        children[parent + 1, : len(own)] = torch.tensor(own)
        law[parent + 1] = number
    return Nodes(children.to(device), law.to(device))


def accept(
    p: Tensor, drafts: Drawn, nodes: Nodes, u: Tensor, exponential: Tensor, near: Tensor, relax: float
) -> tuple[Tensor, Tensor]:
    """Down the tree as far as a candidate is accepted: path [B, at most D + 2] of nodes, -1 behind the last, and the
    tokens [B, D + 1] behind node 0: those of the path, then one drawn.

    p [B, S, V] behind each node; u [B, D + 1, K] and exponential [B, D + 1, V] of the positions.
    """
    rows = torch.arange(len(p), device=p.device)
    node, running = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
    path, tokens, none_given = [node], torch.zeros_like(exponential[..., 0], dtype=torch.int64), ~running
    for d in range(u.shape[1]):
        below = nodes.children[node]
        tried = below.clamp(min=0)
        valid, candidates = (below >= 0) & drafts.valid.gather(1, tried), drafts.tokens.gather(1, tried)
        q = drafts.laws[rows, nodes.law[node]]
        now = (p[rows, node], q, candidates, valid, none_given, u[:, d], exponential[:, d], near, relax)
        tokens[:, d], rank = verify_siblings(*now)
        running = running & (rank >= 0)
        node = torch.where(running, below.gather(1, rank.clamp(min=0)[:, None])[:, 0] + 1, node)
        path.append(torch.where(running, node, -1))
        if not running.any():
            break
    return torch.stack(path, 1), tokens


@torch.inference_mode()
def lantern_pp(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    breadth: Annotated[int, Field(ge=1, le=16)] = 4,
    depth: Annotated[int, Field(ge=1, le=16)] = 4,
    k: Annotated[int, Field(ge=1, le=65536)] = 100,
    relax: Annotated[float, Field(ge=0, le=100)] = 2.0,
    space: Literal["unit", "raw"] = "unit",
) -> Iterator[Step]:
    """Siblings are draws from the drafter's law q without replacement, so acceptance compares p with q; relax 0 is
    exact.

    breadth  children of the last final token; a path of ranks r1, r2, ... (from 1) is in the tree if their product is
             at most that
    depth  of the longest path
    k      look-alikes of a token, as in `lantern`; space: as there
    relax  lambda: look-alikes may add lambda p(x) to a candidate's p(x)
    """
    V, line, shape = model.vocab, Line(model, start, depth + 1), harmonic(min(breadth, model.vocab), depth)
    near = look_alikes(model.codebook if space == "unit" else model.raw_codebook, k)
    parents = torch.tensor([-1, *(n + 1 for n in shape.parents)], device=start.device).expand(len(start), -1)
    offset, nodes = torch.tensor([0, *shape.depth], device=start.device), numbered(shape, start.device)
    drafts = nothing_drawn(shape, len(start), V, noise.dtype, start.device)
    sibling = torch.arange(nodes.children.shape[1], device=start.device)
    while line.left():
        if line.step:
            law = read_on(model.drafter, line.tokens, line.before, line.at, depth + 1)
            drafts = drawn(model.drafter, law, line.at - 1, shape, noise, line.step - 1)
        S = len(shape.parents) + 1 if line.step else 1
        tree, where = Tree(line, drafts.tokens[:, : S - 1], parents[:, :S], offset[:S]), line.ahead(depth + 1)
        # A position is decided in one pass alone, so its number is all that its random numbers need.
        u = noise.uniform("accept", where[..., None] * len(sibling) + sibling)
        e = noise.exponential("sample", where, V)
        path, tokens = accept(tree.law(), drafts, nodes, u, e, near, relax)
        yield tree.advance(tokens, path)
