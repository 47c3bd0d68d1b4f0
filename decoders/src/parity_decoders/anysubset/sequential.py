"""Sequential decoding: one token at a time in the order of the lattice. The definition of the target."""

from collections.abc import Iterator

import torch

from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token

CLAIM = "lossless"
PLAIN: dict = {}  # this is plain decoding, whatever its options
SLOTS = True
SOURCE = "Guo & Ermon 2025, sec. 3 (sequential sampling via factorization), order of Eq. 4"


@torch.inference_mode()
def sequential(model: AnySubsetModel, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Draw one token a pass: that of rank n, from its distribution given all ranks before it."""
    tokens = start.tokens
    n = start.begin
    N = start.tokens.shape[1]
    for _ in range(int((start.end - n).max())):
        slots = next_ranks(start, n, 1)
        probs = model.probs(tokens, start.order, start.begin, slots.asked, slots.rank)
        token = sample_token(probs, noise.exponential("sample", slots.rank * N + slots.rank, model.vocab))
        yield Fill(slots.position, token, slots.open, slots.open[:, 0].long())
        tokens = write(tokens, slots.position, token, slots.open)
        n = n + slots.open[:, 0]
