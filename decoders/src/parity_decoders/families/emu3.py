"""Emu3: rows of visual tokens, each with a separator after it. Source: BAAI's released code; Emu3 of transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError
from parity_decoders.images import ImageModel, lay_out_rows


def check_inputs(images: ImageModel, inputs: Mapping[str, Any]) -> None:
    """Raise DecodingError for prompts that say another size than the image model's: `image_sizes` of the processor."""
    expected = [images.length // images.width, images.width - 1]
    for size in inputs.get("image_sizes", ()):
        if [*map(int, size)] != expected:
            raise DecodingError(
                f"image_sizes: {[*map(int, size)]}; allowed: {expected}, rows and columns of image_model"
            )


def make_image_model(model: Any, rows: int = 90, columns: int = 90) -> ImageModel:
    """Make the image model of an Emu3ForConditionalGeneration. The prompts say the same rows and columns
    (`image_sizes` of its processor with return_for_image_generation=True)."""
    mapping = model.vocabulary_mapping
    codes = torch.tensor([mapping.img2bpe[code] for code in range(len(mapping.img2bpe))])

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, L] to pixels [B, 3, 8 rows, 8 columns]."""
        grid = tokens.reshape(-1, rows, columns + 1)
        with torch.no_grad():
            pixels: Tensor = model.model.vqmodel.decode(mapping.convert_bpe2img(grid))
        return pixels.clamp(-1, 1) / 2 + 0.5

    return ImageModel(
        model,
        lay_out_rows(rows, columns, mapping.eol_token_id),
        codes,
        columns + 1,
        decode,
        {"guidance_scale": 3.0, "top_k": 2048, "eos_token_id": None},
    )
