"""LANTERN: EAGLE-2's tree, verified as if every candidate stood for the tokens that look like it."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.candidates import dynamic, read_on
from parity.decoders.steps import Step
from parity.decoders.verification import descend, look_alikes
from parity.models.discrete.protocol import DraftedModel

CLAIM = "lossy"
NEEDS = "drafter"
SOURCE = "Jang et al. 2024 (LANTERN), sec. 4"


@torch.inference_mode()
def lantern(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Field(ge=1, le=1024)] = 59,
    depth: Annotated[int, Field(ge=1, le=16)] = 4,
    top_k: Annotated[int, Field(ge=1, le=64)] = 10,
    k: Annotated[int, Field(ge=1, le=65536)] = 100,
    delta: Annotated[float, Field(ge=0, le=1)] = 0.2,
    space: Literal["unit", "raw"] = "unit",
    reject: Literal["counted", "all"] = "counted",
) -> Iterator[Step]:
    """`eagle` with the relaxed acceptance; delta 0 is `eagle`, token for token.

    total, depth, top_k  as in `eagle`
    k       look-alikes of a token: those nearest in the tokenizer's codebook (the paper: 1000 of 16,384)
    delta   probability that look-alikes may add to a candidate's
    space   distances between the codes as they are used, of unit length, or, as released, as they are stored
    reject  what a rejected candidate takes with it: the look-alikes that "counted", or, as released, "all" k
    """
    L, V, device = model.length, model.vocab, start.device
    drafter, near = model.drafter, look_alikes(model.codebook if space == "unit" else model.raw_codebook, k)
    line = torch.zeros(
        len(start), L + depth + 2, dtype=start.dtype, device=device
    )  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    at = torch.zeros_like(start)  # [B] first open position
    K, slot = min(top_k, V), torch.arange(depth + 1, device=device)
    tokens, parents, offset = (start[:, None], torch.full_like(start, -1)[:, None], torch.zeros_like(start)[:, None])
    while int(at.min()) < L:
        positions, where = at[:, None] - 1 + offset, at[:, None] + slot
        p = model.tree(tokens, positions, parents).softmax(-1)
        # a position is decided in one pass alone, so its number is all that its random numbers need
        u = noise.uniform("accept", where[:, :-1, None] * K + torch.arange(K, device=device))
        path, found = descend(
            p, tokens, parents, torch.zeros_like(at), noise.exponential("sample", where, V), u, near, delta, reject
        )
        kept = (path >= 0).sum(1).minimum(L - at)
        model.keep(path)
        yield Step(found, kept, at, (positions < L - 1).sum(1))

        line.scatter_(1, where + 1, found)
        first, at = at, at + kept
        tree = dynamic(drafter, read_on(drafter, line, first, at, depth + 1), at - 1, total, depth, top_k)
        tokens = torch.cat([line.gather(1, at[:, None]), tree.tokens], 1)
        parents = torch.cat([torch.full_like(parents[:, :1], -1), tree.parents + 1], 1)
        offset = torch.cat([torch.zeros_like(parents[:, :1]), tree.depth], 1)
