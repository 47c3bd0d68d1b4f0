"""LANTERN: EAGLE-2's tree, verified as if every candidate stood for the tokens that look like it."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.candidates import draft_tree
from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import DraftedModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials, make_trials
from parity_decoders.steps import Step
from parity_decoders.trees import make_tree
from parity_decoders.verification import descend, find_nearest_tokens

CLAIM = "lossy"
REFILLS = True
NEEDS = "drafter"
SOURCE = "Jang et al. 2024 (LANTERN), sec. 4"


@torch.inference_mode()
def lantern(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Interval(ge=1, le=1024), Counts("nodes", small=12)] = 59,
    depth: Annotated[int, Interval(ge=1, le=16), Counts("positions", small=2)] = 4,
    top_k: Annotated[int, Interval(ge=1, le=64), Counts("tokens", most="vocab")] = 10,
    k: Annotated[int, Interval(ge=1, le=65536), Counts("tokens", most="vocab - 1")] = 100,
    delta: Annotated[float, Interval(ge=0, le=1)] = 0.2,
    space: Literal["unit", "raw"] = "unit",
    reject: Literal["counted", "all"] = "counted",
) -> Iterator[Step]:
    """Verify a tree of the drafter's likeliest tokens, as `eagle` does, but accept a candidate also by the probability
    of tokens that look like it. `delta: 0` gives `eagle`'s tokens.

    total, depth, top_k  as in `eagle`
    k       nearest tokens of a token: those nearest in the tokenizer's codebook (the paper: 1000 of 16,384)
    delta   probability that nearest tokens may add to a candidate's
    space   codes are compared at unit length, as the tokenizer uses them, or as they are stored, as released
    reject  what a rejected candidate removes from p: the nearest tokens that "counted", or "all" k, as released
    """
    nearest_tokens = find_nearest_tokens(model.codebook if space == "unit" else model.raw_codebook, k)
    line = SequenceBuffer(model, start, depth + 1)
    size = (total, depth, top_k)
    # Each position is decided in a single pass, so its number is enough to key its random numbers.
    exponential = make_exponentials(line, noise)
    uniform = make_trials(line, noise, min(top_k, model.vocab))
    root = torch.zeros_like(start)

    def run_pass() -> Step:
        tree = make_tree(line, draft_tree(model.drafter, line, size, depth + 1, line.last_frontier, line.frontier))
        e, u = exponential.take_next(depth + 1), uniform.take_next(depth)
        p, evaluated = tree.evaluate()
        path, tokens = descend(p, tree.tokens, tree.follows, root, e, u, nearest_tokens, delta, reject)
        return tree.advance(evaluated, tokens, path)

    return Passes(line, run_pass)
