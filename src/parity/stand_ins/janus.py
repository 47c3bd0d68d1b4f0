"""Janus-Pro's layout in transformers: one folder with the language model, what draws, the picture tokenizer, and the
eyes, which drawing does not need."""

from pathlib import Path
from typing import Any

import torch

from parity.stand_ins import words as shared
from parity.stand_ins.words import save, sharpen, write_tokenizer

CODES, SIDE = 64, 6
WORDS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<|User|>", "<|Assistant|>",
    "<image_placeholder>", "<begin_of_image>", "<end_of_image>",
]  # fmt: skip


def write(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """`model` is the folder."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    own = folder / "Janus-Pro-1B"
    words = write_tokenizer(own, WORDS)
    text = {
        "model_type": "llama", "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 2048,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16 * side, "patch_size": 16,
        "num_image_tokens": side**2, "projection_dim": 64,
    }  # fmt: skip
    pictures = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1, "projection_dim": 64, "image_token_embed_dim": 64,
    }  # fmt: skip
    config = JanusConfig(
        text_config=text, vision_config=vision, vq_config=pictures, image_token_id=words["<image_placeholder>"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net: Any = JanusForConditionalGeneration(config)
    sharpen(net, seed=2)
    net.generation_config._from_model_config = False
    net.generation_config.update(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    net.generation_config.generation_kwargs = {"boi_token_id": words["<begin_of_image>"]}
    save(net, own, net.state_dict())
    return {"model": Path("Janus-Pro-1B")}


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return shared.entry(folder, write(folder), "janus")
