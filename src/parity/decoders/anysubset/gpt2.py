"""Left to right, as GPT-2 is decoded: sequential decoding of a causal model, which takes no prompt but a prefix."""

from collections.abc import Iterator

import torch

from parity.base.errors import ParityError
from parity.base.noise import Noise
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.steps import Fill
from parity.models.anysubset.protocol import AnySubsetModel, Infilling

CLAIM = "lossless"
EXACT_LAYER = None  # enumerable prompts are scattered, and it reads a prefix alone
PROMPT = "prefix"
NETWORK = "judge"
SOURCE = "Radford et al. 2019; the autoregressive baseline of Guo & Ermon 2025, Table 11"


def gpt2(model: AnySubsetModel, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Decode one token a pass; whether with a cache is up to the model. Raises ParityError if a prompt is not a
    prefix."""
    rank = torch.arange(start.order.shape[1], device=start.order.device)
    wrong = (rank < start.end[:, None]) & (start.order != rank)
    if wrong.any():
        row = wrong.nonzero()[0, 0].item()
        raise ParityError(f"row {row}: known tokens behind masked ones; allowed for gpt2: a prefix")
    return sequential(model, start, noise=noise)
