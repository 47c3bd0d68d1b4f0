"""Enumerable models for the tests."""

import torch

from parity.base.noise import Noise, counted_noise
from parity.decode.discrete import Decoded, decode
from parity.models.discrete.sampling import Sampled, Sampling
from parity.models.discrete.tabular import TabularModel, nodes, random_table


def table(vocab: int, length: int, seed: int = 0, pair: bool = False, scale: float = 1.5) -> torch.Tensor:
    return random_table(vocab, length, torch.Generator().manual_seed(seed), scale, pair)


def run(
    decoder, logits, length, rows, *, width=2, noise: Noise | None = None, seed=1, forced=None, sampling=None, **options
) -> Decoded:
    """Decode `rows` sequences of a tabular model, row b with the noise of number b."""
    model = TabularModel(logits, length, rows, width=width, forced=forced)
    if sampling is not None or forced is not None:
        model = Sampled(model, sampling or Sampling())
    noise = noise or counted_noise(seed, range(rows))
    return decode(model, decoder(model, torch.zeros(rows, dtype=torch.int64), noise=noise, **options), rows)


def counts(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    """Histogram over the sequences, first token most significant."""
    length = tokens.shape[1]
    code = (tokens * vocab ** torch.arange(length - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=vocab**length).double()


__all__ = ["counts", "nodes", "run", "table"]
