"""Sequential decoding: one token at a time in the order of the lattice. The definition of the target."""

from collections.abc import Iterator

import torch

from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import race
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, write

CLAIM = "lossless"
PLAIN: dict = {}  # this is plain decoding, whatever its options
SLOTS = True
SOURCE = "Guo & Ermon 2025, sec. 3 (sequential sampling via factorization), order of Eq. 4"


@torch.inference_mode()
def sequential(model: AnySubsetModel, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Each pass draws the token of rank n from its law given all before it."""
    tokens, order, begin, end = start.tokens, start.order, start.begin, start.end
    N, n = tokens.shape[1], start.begin.clone()
    while bool((n < end).any()):
        rank, open_ = n[:, None], (n < end)[:, None]
        law = model.laws(tokens, order, begin, torch.where(open_, rank, N), rank)
        token = race(law, noise.exponential("sample", rank * N + rank, model.vocab))
        position = order.gather(1, rank.clamp(max=N - 1))
        yield Fill(position, token, open_, open_[:, 0].long())
        tokens = write(tokens, position, token, open_)
        n = n + open_[:, 0]
