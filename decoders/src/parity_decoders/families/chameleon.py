"""Chameleon's descendants that draw images: Anole, 32 x 32 tokens, and Lumina-mGPT, whose rows end with a separator.

transformers' Chameleon hides image tokens from its logits, so its modules get a forward that does not. It has no
decoder for Chameleon's image tokenizer, whose weights are in Meta's files.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration
from transformers.modeling_outputs import CausalLMOutputWithPast

from parity_decoders.images import ImageModel, lay_out_rows, share_modules, share_signature
from parity_decoders.slots import name_cache

SEPARATOR = 8803  # Lumina-mGPT's token after each row


class ChameleonImages(ChameleonForConditionalGeneration):
    """A Chameleon whose logits have image tokens."""

    @share_signature(ChameleonForConditionalGeneration.forward)
    def forward(self, input_ids: Any = None, logits_to_keep: int = 0, **keywords: Any) -> Any:
        """Compute logits [B, S, V] of input_ids [B, S], or of the last logits_to_keep of them. keywords: mask,
        positions and cache, as of Chameleon's own forward."""
        outputs = self.model(input_ids=input_ids, **keywords)
        logits = self.lm_head(outputs[0][:, -logits_to_keep:])
        name = name_cache(self)
        return CausalLMOutputWithPast(logits=logits, **{name: outputs.get(name)})


def make_image_model(
    model: Any,
    rows: int | None = None,
    columns: int | None = None,
    separator: int | None = None,
    decode_codes: Callable[[Tensor], Tensor] | None = None,
) -> ImageModel:
    """Make the image model of a ChameleonForConditionalGeneration whose prompts end where an image begins.

    rows, columns: by default those of an image of the image tokenizer's resolution; separator: the token after each
    row, SEPARATOR for Lumina-mGPT; decode_codes: turns codes [B, rows, columns] of the image tokenizer into pixels;
    without it the codes themselves are returned.
    """
    vq = model.config.vq_config
    side = vq.resolution // 2 ** (len(vq.channel_multiplier) - 1)
    rows, columns = (side if size is None else size for size in (rows, columns))
    mapping = model.model.vocabulary_mapping
    codes = torch.tensor([mapping.img2bpe[code] for code in range(len(mapping.img2bpe))])
    to_code = torch.zeros(int(codes.max()) + 1, dtype=torch.long).scatter(0, codes, torch.arange(len(codes)))
    width = columns + (separator is not None)

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, L]."""
        found = to_code.to(tokens.device)[tokens.reshape(-1, rows, width)[..., :columns]]
        return found if decode_codes is None else decode_codes(found)

    settings = {"guidance_scale": 3.0, "eos_token_id": None, "top_k": 2000 if separator is not None else 0}
    forced = lay_out_rows(rows, columns, separator)
    return ImageModel(share_modules(model, ChameleonImages), forced, codes, width, decode, settings)
