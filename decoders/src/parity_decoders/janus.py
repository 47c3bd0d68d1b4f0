"""Janus of transformers as a causal model of its pictures' tokens, since its own `generate` makes pictures in a loop
that takes no decoder.

    pictures = make_picture_model(janus)  # of a JanusForConditionalGeneration
    ids = pictures.generate(**inputs, do_sample=True, custom_generate=sjd_coupled, max_new_tokens=576)
    pixels = janus.decode_image_tokens(ids[:, -576:] - pictures.first_token)
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM


class PictureHead(nn.Module):
    """The head for pictures, widened so that the text's tokens come first; these have the smallest logit."""

    def __init__(self, head: nn.Module, first_token: int):
        super().__init__()
        self.head = head
        self.first_token = first_token

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., first_token + K] of hidden states [..., D]."""
        logits: Tensor = self.head(hidden)
        # the smallest number instead of -inf, since guidance takes the difference of two logits
        return nn.functional.pad(logits, (self.first_token, 0), value=torch.finfo(logits.dtype).min)


def make_picture_model(janus: Any) -> Any:
    """Make a causal model that reads the prompts of a JanusForConditionalGeneration and draws its pictures.

    Token k of a picture is `first_token` + k, after those of the text. The layers are shared, the embeddings copied.
    """
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
    model.lm_head = PictureHead(janus.model.generation_head, len(words))
    model.first_token = len(words)
    return model.eval()
