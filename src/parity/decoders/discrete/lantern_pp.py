"""LANTERN++: a static tree of candidates drawn from the drafter, verified with a multiplicative budget for look-alikes."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from parity.base.noise import Noise
from parity.decoders.candidates import drawn, harmonic, read_on
from parity.decoders.steps import Step
from parity.decoders.verification import look_alikes, verify_siblings
from parity.models.discrete.protocol import DraftedModel

CLAIM = "lossy"
NEEDS = "drafter"
SOURCE = "Park et al. 2025 (LANTERN++); the shape of its static tree is not published, `harmonic` is ours"


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
    """Siblings are draws from the drafter's law q without replacement, so acceptance compares p with q; relax 0 is exact.

    breadth  children of the last final token; a path of ranks r1, r2, ... (from 1) is in the tree if their product is at most that
    depth  of the longest path
    k      look-alikes of a token, as in `lantern`; space: as there
    relax  lambda: look-alikes may add lambda p(x) to a candidate's p(x)
    """
    L, V, B, device = model.length, model.vocab, len(start), start.device
    drafter, near = model.drafter, look_alikes(model.codebook if space == "unit" else model.raw_codebook, k)
    shape = harmonic(min(breadth, V), depth)
    inner = list(shape.children)  # nodes with children; -1, the last final token, is the first
    # by node + 1, which is also the number of the node in the target's pass
    children = torch.full((len(shape.parents) + 1, len(shape.children[-1])), -1)
    law_of = torch.zeros(len(shape.parents) + 1, dtype=torch.int64)
    for number, parent in enumerate(inner):
        children[parent + 1, : len(shape.children[parent])] = torch.tensor(shape.children[parent])
        law_of[parent + 1] = number
    children, law_of = children.to(device), law_of.to(device)
    parents = torch.tensor([-1, *(n + 1 for n in shape.parents)], device=device).expand(B, -1)
    offset = torch.tensor([0, *shape.depth], device=device)
    line = torch.zeros(B, L + depth + 2, dtype=start.dtype, device=device)  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    at, rows, slot = torch.zeros_like(start), torch.arange(B, device=device), torch.arange(depth + 1, device=device)
    K, T = children.shape[1], len(shape.parents)
    tree = torch.zeros(B, T, dtype=torch.int64, device=device)
    held, laws = (
        torch.zeros_like(tree, dtype=torch.bool),
        torch.zeros(B, len(inner), V, dtype=noise.dtype, device=device),
    )
    for step in count():
        if int(at.min()) >= L:
            return
        where, S = at[:, None] + slot, T + 1 if step else 1  # at first there is nothing to draft from
        tokens = torch.cat([line.gather(1, at[:, None]), tree], 1)[:, :S]
        positions = at[:, None] - 1 + offset[:S]
        p = model.tree(tokens, positions, parents[:, :S]).softmax(-1)
        # a position is decided in one pass alone, so its number is all that its random numbers need
        e, u = (
            noise.exponential("sample", where, V),
            noise.uniform("accept", where[..., None] * K + torch.arange(K, device=device)),
        )
        node, running, reached, drew = (
            torch.zeros_like(at),
            torch.ones_like(at, dtype=torch.bool),
            [torch.zeros_like(at)],
            [],
        )
        for d in range(depth + 1):
            below = children[node]
            valid, candidates = ((below >= 0) & held.gather(1, below.clamp(min=0)), tree.gather(1, below.clamp(min=0)))
            given = torch.zeros_like(running)  # none: every candidate is a draw
            token, rank = verify_siblings(
                p[rows, node], laws[rows, law_of[node]], candidates, valid, given, u[:, d], e[:, d], near, relax
            )
            drew.append(token)
            running = running & (rank >= 0)
            node = torch.where(running, below.gather(1, rank.clamp(min=0)[:, None])[:, 0] + 1, node)
            reached.append(torch.where(running, node, -1))
            if not running.any():
                break
        path = torch.stack(reached, 1)
        found = pad(torch.stack(drew, 1), (0, depth + 1 - len(drew)))
        kept = (path >= 0).sum(1).minimum(L - at)
        model.keep(path)
        yield Step(found, kept, at, (positions < L - 1).sum(1))

        line.scatter_(1, where + 1, found)
        first, at = at, at + kept
        tree, held, by_node = drawn(drafter, read_on(drafter, line, first, at, depth + 1), at - 1, shape, noise, step)
        laws = torch.stack([by_node[n] for n in inner], 1)
