"""The function that `generate` of transformers runs when it is given this folder as `custom_generate`."""

from parity_decoders.transformers import generate

__all__ = ["generate"]
