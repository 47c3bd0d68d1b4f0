"""Liquid: a Gemma whose last tokens are codes of Chameleon's image tokenizer, 32 x 32 an image.

Source: FoundationVision/Liquid, whose loop guides logits, leaves out words, and then filters, as `generate` does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError
from parity_decoders.images import ImageModel, lay_out_rows

PROMPT, UNCONDITIONAL = "{} Generate an image based on this description.<boi>", "<unconditional><boi>"


def make_image_model(
    model: Any,
    rows: int = 32,
    columns: int = 32,
    n_words: int = 256000,
    decode_codes: Callable[[Tensor], Tensor] | None = None,
) -> ImageModel:
    """Make the image model of Liquid's GemmaForCausalLM, for prompts of PROMPT and UNCONDITIONAL.

    n_words: tokens before the codes, as many as the tokenizer has; decode_codes: turns codes [B, rows, columns] of the
    image tokenizer into pixels; without it the codes themselves are returned. Raises DecodingError for a Gemma without
    codes.
    """
    if not 0 < n_words < (vocab := model.config.vocab_size):
        raise DecodingError(f"image_model: n_words: {n_words!r} of a vocabulary of {vocab}; allowed: 1 to {vocab - 1}")

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, L]."""
        codes = tokens.reshape(-1, rows, columns) - n_words
        return codes if decode_codes is None else decode_codes(codes)

    settings = {"guidance_scale": 7.0, "temperature": 0.99, "top_k": 4096, "top_p": 0.96, "eos_token_id": None}
    chosen = torch.arange(n_words, vocab)
    return ImageModel(model, lay_out_rows(rows, columns), chosen, columns, decode, settings)
