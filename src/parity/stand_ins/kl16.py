"""MAR's autoencoder, kl16.ckpt: {"model": tensors under latent diffusion's names, the training loss's among them}.

Two levels in place of five: two pixels a token each way.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from parity.models.continuous.kl import KL, KLConfig
from parity.stand_ins.tensors import drawn

SIZES = KLConfig(ch=32, ch_mult=(1, 1), res_blocks=1)
MID = ("block_1", "attn_1", "block_2")


def published(name: str, levels: int) -> str:
    """A parameter's name in the published file: decoder levels are numbered from the finest there."""
    name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MID[int(m[1])]}.", name)
    name = re.sub(r"^encoder\.conv_blocks\.(\d)\.", r"encoder.down.\1.", name)
    name = re.sub(r"^decoder\.conv_blocks\.(\d)\.", lambda m: f"decoder.up.{levels - 1 - int(m[1])}.", name)
    return re.sub(r"(down|up)\.(\d)\.res\.", r"\1.\2.block.", name)


def tensors(sizes: KLConfig = SIZES) -> dict[str, Tensor]:
    state = drawn(KL(sizes), 7)
    return {published(name, len(sizes.ch_mult)): value for name, value in state.items()}


def write(folder: Path) -> dict[str, str]:
    torch.save({"model": {**tensors(), "loss.logvar": torch.zeros(1)}}, folder / "kl16.ckpt")
    return {"kl": "kl16.ckpt"}
