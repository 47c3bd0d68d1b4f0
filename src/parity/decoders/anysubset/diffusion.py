"""Masked discrete diffusion on the same network: tokens appear in parallel steps as if they were independent."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field

from parity.base.counts import Counts
from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import race
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, lattice, ranks, write

CLAIM = "lossy"
SOURCE = "Sahoo et al. 2024 (MDLM), ancestral sampling, linear schedule; on this network for Guo & Ermon 2025, Table 11"


@torch.inference_mode()
def diffusion(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    steps: Annotated[int, Field(ge=1, le=4096), Counts("passes", small=4)] = 64,
) -> Iterator[Fill]:
    """In step i of T, each masked position is filled with probability 1 / (T - i), from its law given what is known.

    steps  T, passes of the network; the fewer, the more tokens are drawn as if independent

    Filled positions join the prompt: all known tokens attend to each other.
    """
    tokens, N = start.tokens, start.tokens.shape[1]
    known = tokens != model.mask
    for step in range(steps):
        order, begin, end = lattice(known, start.end)
        first, most = torch.stack([begin.min(), (end - begin).max()]).tolist()
        if most <= 0:
            return
        here = ranks(start._replace(order=order), begin, N - first)
        law = model.laws(tokens, order, begin, here.asked, begin[:, None].expand_as(here.rank))
        index = step * N + here.position
        new = race(law, noise.exponential("sample", index, model.vocab))
        final = here.open & (noise.uniform("accept", index) * (steps - step) <= 1)
        yield Fill(here.position, new, final, (begin < end).long())
        tokens, known = write(tokens, here.position, new, final), write(known, here.position, final, final)
