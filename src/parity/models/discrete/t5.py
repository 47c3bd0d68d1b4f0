"""The text encoder: T5, freshly initialised for training, or read from files; captions as LlamaGen takes them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parity.base.weights import load_weights
from parity.embedded.tokenizer import VOCAB, check_lengths, encode

if TYPE_CHECKING:
    from transformers import T5EncoderModel

Encoder = Callable[[list[str]], dict[str, Tensor]]  # captions to what a model is conditioned on, a row each


def t5_encoder() -> "T5EncoderModel":
    """The embedded encoder's architecture, freshly initialised; 0.6 M parameters."""
    from transformers import T5Config, T5EncoderModel

    sizes: Any = {"d_model": 128, "d_kv": 32, "d_ff": 384, "num_layers": 2, "num_heads": 4}
    return T5EncoderModel(T5Config(vocab_size=VOCAB, **sizes, feed_forward_proj="gated-gelu", dropout_rate=0.0))


def left_pad(embeddings: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded encoder output [B, T, D] and mask [B, T] left-padded, as LlamaGen reads them; padding is zeroed."""
    T = valid.shape[1]
    order = (torch.arange(T, device=valid.device)[None] + valid.sum(1, keepdim=True)) % T
    embeddings = (embeddings * valid[..., None]).gather(1, order[..., None].expand_as(embeddings))
    return embeddings, valid.gather(1, order)


def read_encoder(path: Path, length: int, device: str = "cpu") -> Encoder:
    """The embedded encoder from its file, or a published one from its folder: captions to left-padded embeddings
    [B, length, D] float32 and their mask, valid [B, length].

    ParityError for a caption of more tokens than that.
    """
    if path.is_dir():
        from transformers import AutoTokenizer, T5EncoderModel

        net = T5EncoderModel.from_pretrained(path, local_files_only=True)
        tokenizer: Callable[..., dict[str, Tensor]] = AutoTokenizer.from_pretrained(path, local_files_only=True)
    else:
        net, tokenizer = t5_encoder(), encode
        load_weights(net, path)
    net.eval().to(device)

    @torch.inference_mode()
    def encoded(captions: list[str]) -> dict[str, Tensor]:
        if path.is_dir():
            check_lengths(tokenizer(captions)["input_ids"], captions, length)  # type: ignore[arg-type]
        words = tokenizer(captions, padding="max_length", max_length=length, return_tensors="pt")
        ids, valid = words["input_ids"].to(device), words["attention_mask"].to(device)
        hidden, mask = left_pad(net(input_ids=ids, attention_mask=valid).last_hidden_state, valid)
        return {"embeddings": hidden.float(), "valid": mask}

    return encoded
