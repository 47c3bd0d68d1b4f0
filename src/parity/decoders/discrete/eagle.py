"""EAGLE-2: a one-layer drafter continues the target's features; its likeliest continuations, a tree, are verified in one pass."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.candidates import Raced, dynamic, read_on
from parity.decoders.steps import Step
from parity.decoders.verification import race
from parity.models.discrete.protocol import DraftedModel
from parity.models.discrete.trees import ancestors, followed

CLAIM = "lossless"
COUPLED_WITH: dict = {}  # whatever its options
NEEDS = "drafter"
SOURCE = "Li et al. 2024 (EAGLE-2), sec. 4; rank: race is this project's"


@torch.inference_mode()
def eagle(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Field(ge=1, le=1024)] = 59,
    depth: Annotated[int, Field(ge=1, le=16)] = 4,
    top_k: Annotated[int, Field(ge=1, le=64)] = 10,
    rank: Literal["probability", "race"] = "probability",
    sharp: Annotated[float, Field(gt=0, le=100)] = 0.5,
) -> Iterator[Step]:
    """Candidates are the drafter's likeliest tokens, not draws: trying them one after the other against p, each taken from p when it fails,
    is the same as drawing from p and looking whether the draw is a candidate. So is it done here, with `ar`'s races: the tokens are `ar`'s.

    total  nodes of the tree; depth: of its longest path; top_k: nodes expanded per level, and tokens tried after each
    rank   what the likeliest candidates are: those of the drafter's law, or, as every race is known before it is run, those likeliest to win
           it; sharp: how far the drafter is trusted then, as a temperature
    """
    L, V, device = model.length, model.vocab, start.device
    drafter, rows = model.drafter, torch.arange(len(start), device=start.device)[:, None]
    line = torch.zeros(
        len(start), L + depth + 2, dtype=start.dtype, device=device
    )  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    at = torch.zeros_like(start)  # [B] first open position
    e = noise.exponential("sample", at[:, None] + torch.arange(depth + 1, device=device), V)
    tokens, parents, offset = (start[:, None], torch.full_like(start, -1)[:, None], torch.zeros_like(start)[:, None])
    while int(at.min()) < L:
        positions = at[:, None] - 1 + offset
        p = model.tree(tokens, positions, parents).softmax(-1)
        drawn = race(p, e[rows, offset])
        path = followed(tokens, parents, drawn, ancestors(parents))
        found = torch.zeros_like(e[..., 0], dtype=torch.int64).scatter_reduce(
            1, offset, torch.where(path, drawn, 0), "amax"
        )
        kept = (torch.where(path, offset, 0).amax(1) + 1).minimum(L - at)
        model.keep(torch.where(path, torch.arange(tokens.shape[1], device=device), -1))
        yield Step(found, kept, at, (positions < L - 1).sum(1))

        where = at[:, None] + torch.arange(depth + 1, device=device)
        line.scatter_(1, where + 1, found)
        first, at = at, at + kept
        e = noise.exponential("sample", at[:, None] + torch.arange(depth + 1, device=device), V)
        guide = Raced(drafter, e, at, sharp) if rank == "race" else drafter
        tree = dynamic(guide, read_on(guide, line, first, at, depth + 1), at - 1, total, depth, top_k)
        tokens = torch.cat([line.gather(1, at[:, None]), tree.tokens], 1)
        parents = torch.cat([torch.full_like(parents[:, :1], -1), tree.parents + 1], 1)
        offset = torch.cat([torch.zeros_like(parents[:, :1]), tree.depth], 1)
