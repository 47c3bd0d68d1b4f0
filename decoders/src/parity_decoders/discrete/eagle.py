"""EAGLE-2: a one-layer drafter continues the target's features; its likeliest continuations, a tree, are verified in
one pass."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.candidates import NoiseDrafter, draft_tree
from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import DraftedModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials
from parity_decoders.steps import Step
from parity_decoders.trees import make_tree
from parity_decoders.verification import sample_token

CLAIM = "lossless"
REFILLS = True
COUPLED_WITH: dict = {}  # its tokens are those of `ar` whatever its options
NEEDS = "drafter"
SOURCE = "Li et al. 2024 (EAGLE-2), sec. 4; rank: race is this project's"


@torch.inference_mode()
def eagle(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Interval(ge=1, le=1024), Counts("nodes", small=12)] = 59,
    depth: Annotated[int, Interval(ge=1, le=16), Counts("positions", small=2)] = 4,
    top_k: Annotated[int, Interval(ge=1, le=64), Counts("tokens", most="vocab")] = 10,
    rank: Literal["probability", "race"] = "probability",
    sharp: Annotated[float, Interval(gt=0, le=100)] = 0.5,
) -> Iterator[Step]:
    """Verify a tree of the drafter's likeliest tokens. Trying candidates one after the other against p, removing each
    rejected one from p, is the same as drawing from p and looking whether the draw is a candidate. The code does the
    latter with `ar`'s draws, so its tokens are `ar`'s.

    total  nodes of the tree
    depth  nodes on its longest path
    top_k  nodes expanded per level, and tokens tried after each
    rank   which candidates come first: the drafter's likeliest, or those likeliest to win their draw
    sharp  temperature of the drafter's distribution under `rank: race`: how far it is trusted
    """
    line = SequenceBuffer(model, start, depth + 1)
    size = (total, depth, top_k)
    exponential = make_exponentials(line, noise)

    def run_pass() -> Step:
        e = exponential.take_next(depth + 1)
        drafter = NoiseDrafter(model.drafter, e, line.frontier, sharp) if rank == "race" else model.drafter
        tree = make_tree(line, draft_tree(drafter, line, size, depth + 1, line.last_frontier, line.frontier))
        p, evaluated = tree.evaluate()
        drawn = sample_token(p, e[line.rows, tree.offset])
        path = tree.follow(drawn)
        tokens = torch.zeros_like(line.next_positions(depth + 1))
        tokens = tokens.scatter_reduce(1, tree.offset, torch.where(path, drawn, 0), "amax")
        return tree.advance(evaluated, tokens, torch.where(path, tree.nodes, -1))

    return Passes(line, run_pass)
