"""Janus: one token for each square of 16 pixels.

Its own `generate` draws images in a loop that takes no decoder, so its layers become a causal model that reads prompts
and draws image tokens, whose ids follow those of the text.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from parity_decoders.images import ImageModel, lay_out_rows


class ImageHead(nn.Module):
    """The head of image tokens, widened so that the text's tokens come first; these have the smallest logit."""

    def __init__(self, head: nn.Module, n_words: int):
        super().__init__()
        self.head = head
        self.n_words = n_words

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., n_words + K] of hidden states [..., D]."""
        logits: Tensor = self.head(hidden)
        # the smallest number instead of -inf, since guidance takes the difference of two logits, in float32
        least = max(torch.finfo(dtype).min for dtype in (logits.dtype, torch.float32))
        return nn.functional.pad(logits, (self.n_words, 0), value=least)


def make_causal_model(janus: Any) -> Any:
    """Make a LlamaForCausalLM whose token n_words + k is image token k of a JanusForConditionalGeneration. The layers
    are shared, the embeddings copied."""
    text = copy.copy(janus.model.language_model)
    text._modules = dict(text._modules)  # a copy, so that the Janus keeps its own embeddings
    words = text.embed_tokens.weight
    count = janus.model.vqmodel.config.num_embeddings
    with torch.no_grad():
        codes = janus.prepare_embeddings_for_image_generation(torch.arange(count, device=words.device))
    text.embed_tokens = nn.Embedding.from_pretrained(torch.cat([words, codes]))
    config = copy.deepcopy(text.config)
    config.vocab_size = len(words) + count
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model.model = text
    model.lm_head = ImageHead(janus.model.generation_head, len(words))
    return model.eval()


def make_image_model(model: Any) -> ImageModel:
    """Make the image model of a JanusForConditionalGeneration. The unconditional prompt has padding in place of all
    tokens between the first and the image's start, and a mask of ones, as in its own loop."""
    side = model.model.vqmodel.config.num_patches
    causal = make_causal_model(model)
    n_words: int = causal.lm_head.n_words

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, side * side] to pixels [B, 3, 16 side, 16 side]."""
        with torch.no_grad():
            pixels: Tensor = model.decode_image_tokens(tokens - n_words)
        return pixels.movedim(-1, 1).clamp(-1, 1) / 2 + 0.5

    codes = torch.arange(n_words, n_words + model.model.vqmodel.config.num_embeddings)
    settings = {"guidance_scale": 5.0, "top_k": 0, "eos_token_id": None}
    return ImageModel(causal, lay_out_rows(side, side), codes, side, decode, settings)
