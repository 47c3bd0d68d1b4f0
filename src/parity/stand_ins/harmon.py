"""Harmon: harmon_*.pth, bare tensors of autoencoder, language model with its output layer, MAR and projections; its
tokenizer's folder, Qwen2.5's; kl16.ckpt. Trained on 2 x 2 tokens, so released for 4 x 4."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity.embedded import stories
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.stand_ins import kl16, mar, pairs, pieces
from parity.stand_ins.tensors import drawn

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FOLDER = "Qwen2.5-0.5B-Instruct"


def sizes(blocks: int, heads: int, vocab: int) -> HarmonConfig:
    language: dict[str, Any] = {
        "hidden": 64 * heads,
        "intermediate": 64,
        "attention_heads": heads,
        "key_value_heads": 1,
    }
    return HarmonConfig(**vars(mar.sizes(blocks, 2)), **language, layers=2, vocab=vocab)


def tensors(blocks: int, heads: int, vocab: int, seed: int) -> dict[str, Tensor]:
    """As the released files hold them: the language model in bfloat16."""
    state = drawn(HarmonNet(sizes(blocks, heads, vocab)), seed)
    state["llm.lm_head.weight"] = state["llm.model.embed_tokens.weight"].clone()
    state = {k: v.bfloat16() if k.startswith("llm.") else v for k, v in state.items()}
    return state | {f"vae.{k}": v for k, v in kl16.tensors().items()}


def write(folder: Path) -> dict[str, str]:
    tokenizer = pieces.byte_pairs([" ".join(stories.text(i)) for i in range(20)], MARKS, 320)
    pieces.save(tokenizer, folder / FOLDER, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"})
    vocab = tokenizer.get_vocab_size() + 5  # the published table, too, is longer than its list of words
    for name, blocks, heads, seed in (("harmon_1.5b.pth", 2, 2, 5), ("harmon_0.5b.pth", 1, 1, 6)):
        torch.save(tensors(blocks, heads, vocab, seed), folder / name)
    return kl16.write(folder) | {"target": "harmon_1.5b.pth", "draft": "harmon_0.5b.pth", "tokenizer": FOLDER}


def entry(folder: Path) -> dict[str, Any]:
    """What a section `continuous` says of it, converted."""
    return pairs.entry("harmon", write(folder), folder)
