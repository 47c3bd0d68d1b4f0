"""Emu3-Gen's layout in transformers: one folder, a nested configuration, the vision tokenizer in it."""

from pathlib import Path
from typing import Any

import torch

from parity.stand_ins import words as shared
from parity.stand_ins.words import save, sharpen, write_tokenizer

CODES = 64
WORDS = [
    "<|endoftext|>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>", "<|image token|>",
    "<|image start|>", "<|image end|>", "<image>",
]  # fmt: skip


def write(folder: Path, codes: int = CODES) -> dict[str, Path]:
    """`model` is the folder."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    own = folder / "Emu3-Gen-hf"
    words = write_tokenizer(own, [*WORDS, *(f"<|visual token {i:06d}|>" for i in range(codes))])
    text = {
        "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 9216,
        "pad_token_id": words["<|endoftext|>"], "bos_token_id": words["<|extra_203|>"],
        "eos_token_id": words["<|extra_204|>"],
    }  # fmt: skip
    vision = {
        "codebook_size": codes, "base_channels": 32, "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1,
        "hidden_size": 32,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = Emu3ForConditionalGeneration(Emu3Config(text_config=text, vq_config=vision, vocabulary_map=words))
    sharpen(net, seed=2)
    save(net, own, net.state_dict())
    return {"model": Path("Emu3-Gen-hf")}


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return shared.entry(folder, write(folder), "emu3", pixels=48)
