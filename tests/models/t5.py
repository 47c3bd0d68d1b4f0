"""Flan-T5 as it is published: the whole model in a folder of transformers' layout, its tokenizer beside it.

Source: google/flan-t5-xl's files (config.json, model.safetensors, tokenizer.json, ...); pad 0, end 1, unknown 2, the
end token behind every caption, an output matrix that is not tied to the embeddings.
"""

import string
from pathlib import Path
from typing import Any

import torch

FOLDER = "flan-t5"
WIDTH = 32  # of the embeddings: caption_dim of a network that reads them
WORDS = ("▁a", "▁red", "▁circle", "▁on", "▁blue", "▁photo", "▁of", "▁the", "▁dog", "▁cat", "▁")


def write_t5(folder: Path) -> dict[str, Path]:
    """{"text": the encoder's folder}; the same bytes every time."""
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    words = T5Tokenizer(vocab=pieces(), extra_ids=0)
    words.save_pretrained(folder / FOLDER)
    sizes: Any = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "num_decoder_layers": 1}
    sizes |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.0}
    config = T5Config(vocab_size=len(pieces()), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = T5ForConditionalGeneration(config)
    net.save_pretrained(folder / FOLDER)
    return {"text": Path(FOLDER)}


def pieces() -> list[tuple[str, float]]:
    """A unigram vocabulary: the special tokens first, then words, then every printable character."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    characters = [c for c in string.printable if c.isprintable() and c != " "]
    return special + [(word, -1.0) for word in WORDS] + [(c, -5.0) for c in characters]
