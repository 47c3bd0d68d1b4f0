"""A PickScore as its repository holds it: transformers' CLIPModel, config.json beside model.safetensors. Random, of two
layers; its words are CLIP's."""

from pathlib import Path

import torch

TEXT = {"vocab_size": 49408, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {"image_size": 32, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def write(folder: Path) -> dict[str, str]:
    """{"pickscore": a folder}."""
    from transformers import CLIPConfig, CLIPModel

    text = TEXT | {"intermediate_size": 64, "projection_dim": 24, "eos_token_id": 49407, "bos_token_id": 49406}
    vision = VISION | {"intermediate_size": 64, "projection_dim": 24}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    net.save_pretrained(folder / "pickscore")
    return {"pickscore": "pickscore"}
