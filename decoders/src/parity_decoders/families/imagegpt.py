"""ImageGPT: 32 x 32 tokens, each a colour.

Its own forward takes a mask of each row alone [B, T] and flattens any other; its attention has a causal mask as long as
its positions, which nodes of a tree exceed. So its modules get a forward that takes a mask of each slot.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import ImageGPTForCausalImageModeling
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions

from parity_decoders.errors import DecodingError
from parity_decoders.images import ImageModel, lay_out_rows, share_modules, share_signature
from parity_decoders.slots import name_cache


class ImageGPTImages(ImageGPTForCausalImageModeling):
    """An ImageGPT whose forward takes a mask of each slot [B, 1, S, T]."""

    @share_signature(ImageGPTForCausalImageModeling.forward)
    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **keywords: Any
    ) -> Any:
        """Compute logits [B, S, V] of input_ids [B, S]."""
        name = name_cache(self)
        cache = keywords.get(name)
        past = 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)[None]
        network: Any = self.transformer
        hidden = network.wte(input_ids) + network.wpe(position_ids)
        mask = make_mask(attention_mask, hidden, past)
        for block in network.h:
            hidden = hidden + attend(block.attn, block.ln_1(hidden), mask, cache)
            hidden = hidden + block.mlp(block.ln_2(hidden))
        return CausalLMOutputWithCrossAttentions(logits=self.lm_head(network.ln_f(hidden)), **{name: cache})


def make_mask(mask: Tensor | None, hidden: Tensor, past: int) -> Tensor:
    """Make the additive mask [B or 1, 1, S, T] of hidden states [B, S, D] after `past` others: `mask` itself if it is
    one, else a causal one without the padding, which is false in mask [B, T]."""
    if mask is not None and mask.dim() == 4:
        return mask
    size = hidden.shape[1]
    visible = torch.ones(size, past + size, dtype=torch.bool, device=hidden.device).tril(past)[None, None]
    if mask is not None:
        visible = visible & mask[:, None, None].bool()
    zeros = torch.zeros(visible.shape, dtype=hidden.dtype, device=hidden.device)
    return zeros.masked_fill(~visible, torch.finfo(hidden.dtype).min)


def attend(attention: Any, x: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Compute the output [B, S, D] of an attention of ImageGPT on x [B, S, D]. mask [B or 1, 1, S, T] is additive."""
    heads, size = attention.num_heads, attention.head_dim
    query, key, value = (
        part.unflatten(2, (heads, size)).transpose(1, 2) for part in attention.c_attn(x).split(heads * size, 2)
    )
    if cache is not None:
        key, value = cache.update(key, value, attention.layer_idx)
    scale = size**-0.5 if attention.scale_attn_weights else 1.0
    if attention.scale_attn_by_inverse_layer_idx:
        scale /= attention.layer_idx + 1
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    result: Tensor = attention.c_proj(output.transpose(1, 2).flatten(2))
    return result


def make_image_model(model: Any, clusters: Any, rows: int = 32, columns: int = 32) -> ImageModel:
    """Make the image model of an ImageGPTForCausalImageModeling. Its prompt is the last token of the vocabulary.

    clusters [K, 3]: the colours between -1 and 1, as its image processor has them. Raises DecodingError for another
    number of them than the model has tokens.
    """
    colours = torch.as_tensor(clusters, dtype=torch.float32)
    count = model.lm_head.out_features
    if colours.shape != (count, 3):
        raise DecodingError(f"image_model: clusters of shape {list(colours.shape)}; allowed: {[count, 3]}")
    forced = lay_out_rows(rows, columns)

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, L] to pixels [B, 3, rows, columns]."""
        pixels = colours.to(tokens.device)[tokens.reshape(-1, rows, columns)]
        return pixels.movedim(-1, 1) / 2 + 0.5

    settings = {"eos_token_id": None, "top_k": 0}
    return ImageModel(share_modules(model, ImageGPTImages), forced, torch.arange(count), columns, decode, settings)
