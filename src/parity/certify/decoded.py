"""Parity's own discrete decoders (and those of its signature) as black boxes: prompts are not told apart."""

from typing import Any

import numpy as np
from parity_certify.laws import Law, law

from parity.equality.targets import Decoder
from parity.equality.targets.discrete import Target
from parity.models.discrete.tabular import TabularModel


class Decoded:
    """A sampler that decodes a target of the exact layer with a decoder."""

    def __init__(self, decoder: Decoder, target: Target, **options: Any):
        self.decoder, self.target, self.options = decoder, target, options
        self.__name__ = getattr(getattr(decoder, "func", decoder), "__name__", "decoder")

    def __call__(self, prompts: np.ndarray, seed: int) -> np.ndarray:
        codes = self.target.draw(self.decoder, len(prompts), seed, self.options)
        powers = self.target.vocab ** np.arange(self.target.length - 1, -1, -1)
        return codes[:, None] // powers % self.target.vocab


def law_of(target: Target) -> Law:
    """The law of a target, by its conditionals as the decoder meets them (sampling settings, forced tokens)."""
    import torch

    def conditional(prefixes: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(prefixes)  # the first is the prompt's
        positions = torch.arange(-1, tokens.shape[1] - 1).expand(tokens.shape)
        return target.model(len(tokens)).logits(tokens, positions)[:, -1].double().softmax(-1).numpy()

    return law(conditional, vocab=target.vocab, length=target.length, name=target.name)


__all__ = ["Decoded", "TabularModel", "law_of"]
