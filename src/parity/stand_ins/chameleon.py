"""Lumina-mGPT's layout: a sharded folder without an image tokenizer, and Meta's `vqgan.ckpt` beside it."""

import random
from pathlib import Path
from typing import Any

import torch

from parity.stand_ins import words as shared
from parity.stand_ins.kl16 import published
from parity.stand_ins.words import save, sharpen, write_tokenizer

CODES, SIDE = 64, 6  # codes of the image tokenizer; of a side of its own pictures
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]
GRID = [f"<reserved{8799 + n:05d}>" for n in range(17)]  # the line token, then sizes in 32 pixels
LETTERS = "ABCDEFGHIJ"


def words(codes: int = CODES) -> int:
    """Tokens of the vocabulary: the named ones, the codes, the bytes."""
    return len(WORDS) + len(GRID) + codes + 256


def names(codes: int) -> list[str]:
    """Names of the codes, in an order of the vocabulary that is not the tokenizer's own, as in the published file."""
    found = ["IMGIMG" + "".join(LETTERS[int(d)] for d in str(code)) + "Z" for code in range(codes)]
    random.Random(1).shuffle(found)
    return found


def network(folder: Path, architecture: str, codes: int, side: int) -> Any:
    """transformers' own model of tiny sizes, its configuration and tokenizer written."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    words = write_tokenizer(folder, [*WORDS, *GRID], names(codes))
    vq = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "resolution": 16 * side, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1,
    }  # fmt: skip
    config = ChameleonConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, vq_config=vq, vocabulary_map=words, 
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = ChameleonForConditionalGeneration(config)
    sharpen(net, seed=2)
    net.__class__ = type(architecture, (type(net),), {})  # transformers writes the class's name
    return net


def decoder(net: Any) -> dict[str, torch.Tensor]:
    """Weights of an image decoder that fits a model's encoder, under Meta's names."""
    from parity.models.discrete.chameleon import VQGAN
    from parity.models.discrete.vq import VQConfig

    c = net.config.vq_config
    made = VQGAN(
        VQConfig(c.num_embeddings, c.embed_dim, c.base_channels, tuple(c.channel_multiplier), c.num_res_blocks,
                 c.latent_channels, 32, False)
    )  # fmt: skip
    sharpen(made, seed=3)
    return {published(name, len(c.channel_multiplier)): value for name, value in made.state_dict().items()}


def write(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """Lumina-mGPT: `model` is a folder whose files hold no image tokenizer, `vq` Meta's file."""
    net = network(folder / "Lumina-mGPT-7B-768", "ChameleonXLLMXForConditionalGeneration", codes, side)
    state = net.state_dict()
    save(net, folder / "Lumina-mGPT-7B-768", {k: v for k, v in state.items() if ".vqmodel." not in k})
    image = {k.removeprefix("model.vqmodel."): v for k, v in state.items() if ".vqmodel." in k} | decoder(net)
    image["loss.discriminator.main.0.weight"] = torch.zeros(1, 3, 4, 4)  # of its training, as published
    torch.save({"state_dict": image}, folder / "vqgan.ckpt")
    return {"model": Path("Lumina-mGPT-7B-768"), "vq": Path("vqgan.ckpt")}


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return shared.entry(folder, write(folder), "chameleon", pixels=128)
