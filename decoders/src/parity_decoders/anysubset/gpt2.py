"""Left to right, as GPT-2 is decoded: sequential decoding of a causal model, which takes no prompt but a prefix."""

from collections.abc import Iterator

import torch

from parity_decoders.anysubset.sequential import sequential
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling
from parity_decoders.steps import Fill

CLAIM = "lossless"
EXACT_LAYER = None  # the exact layer's prompts are scattered, and this decoder takes a prefix only
PROMPT = "prefix"
NETWORK = "judge"
SOURCE = "Radford et al. 2019; the autoregressive baseline of Guo & Ermon 2025, Table 11"


def gpt2(model: AnySubsetModel, start: Infilling, *, noise: Noise) -> Iterator[Fill]:
    """Decode from left to right, one token a pass. Raises DecodingError if a row's known tokens are not a prefix of
    it."""
    rank = torch.arange(start.order.shape[1], device=start.order.device)
    wrong = (rank < start.end[:, None]) & (start.order != rank)
    if wrong.any():
        row = wrong.nonzero()[0, 0].item()
        raise DecodingError(f"row {row}: known tokens after masked ones; allowed for gpt2: a prefix")
    return sequential(model, start, noise=noise)
