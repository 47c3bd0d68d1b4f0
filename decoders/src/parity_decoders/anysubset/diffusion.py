"""Masked discrete diffusion on the same network: tokens appear in parallel steps as if they were independent."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Interval

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, make_lattice, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token

CLAIM = "lossy"
SOURCE = "Sahoo et al. 2024 (MDLM), ancestral sampling, linear schedule; on this network for Guo & Ermon 2025, Table 11"


@torch.inference_mode()
def diffusion(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    steps: Annotated[int, Interval(ge=1, le=4096), Counts("passes", small=4)] = 64,
) -> Iterator[Fill]:
    """Fill each masked position in step i of T with probability 1 / (T - i), from its distribution given the known
    tokens.

    steps  T, passes of the network; the fewer, the more tokens are drawn as if independent

    Filled positions join the prompt: all known tokens attend to each other.
    """
    tokens = start.tokens
    N = start.tokens.shape[1]
    is_known = tokens != model.mask
    for step in range(steps):
        order, n_known, end = make_lattice(is_known, start.end)
        first, max_missing = torch.stack([n_known.min(), (end - n_known).max()]).tolist()
        if max_missing <= 0:
            return
        slots = next_ranks(start._replace(order=order), n_known, N - first)
        probs = model.probs(tokens, order, n_known, slots.asked, n_known[:, None].expand_as(slots.rank))
        index = step * N + slots.position
        new = sample_token(probs, noise.exponential("sample", index, model.vocab))
        final = slots.open & (noise.uniform("accept", index) * (steps - step) <= 1)
        yield Fill(slots.position, new, final, (n_known < end).long())
        tokens, is_known = write(tokens, slots.position, new, final), write(is_known, slots.position, final, final)
