"""LANTERN: EAGLE-2's tree, verified as if every candidate stood for the tokens that look like it."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.counts import Counts
from parity.base.noise import Noise
from parity.decoders.candidates import drafted
from parity.decoders.sequence_buffer import SequenceBuffer, races, trials
from parity.decoders.steps import Step
from parity.decoders.trees import below
from parity.decoders.verification import descend, look_alikes
from parity.models.discrete.protocol import DraftedModel

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
    total: Annotated[int, Field(ge=1, le=1024), Counts("nodes", small=12)] = 59,
    depth: Annotated[int, Field(ge=1, le=16), Counts("positions", small=2)] = 4,
    top_k: Annotated[int, Field(ge=1, le=64), Counts("tokens", most="vocab")] = 10,
    k: Annotated[int, Field(ge=1, le=65536), Counts("tokens", most="vocab - 1")] = 100,
    delta: Annotated[float, Field(ge=0, le=1)] = 0.2,
    space: Literal["unit", "raw"] = "unit",
    reject: Literal["counted", "all"] = "counted",
) -> Iterator[Step]:
    """`eagle` with the relaxed acceptance; `delta: 0` gives `eagle`'s tokens.

    total, depth, top_k  as in `eagle`
    k       look-alikes of a token: those nearest in the tokenizer's codebook (the paper: 1000 of 16,384)
    delta   probability that look-alikes may add to a candidate's
    space   codes are compared at unit length, as the tokenizer uses them, or as they are stored, as released
    reject  what a rejected candidate removes from p: the look-alikes that "counted", or "all" k, as released
    """
    near = look_alikes(model.codebook if space == "unit" else model.raw_codebook, k)
    line, size = SequenceBuffer(model, start, depth + 1), (total, depth, top_k)
    # A position is decided in one pass alone, so its number is all that its random numbers need.
    exponential, uniform = races(line, noise), trials(line, noise, min(top_k, model.vocab))
    while line.left():
        tree = below(line, drafted(model.drafter, line, size, depth + 1, line.before, line.at) if line.step else None)
        e, u = exponential.ahead(depth + 1), uniform.ahead(depth)
        root = torch.zeros_like(line.at)
        path, tokens = descend(tree.law(), tree.tokens, tree.follows, root, e, u, near, delta, reject)
        yield tree.advance(tokens, path)
