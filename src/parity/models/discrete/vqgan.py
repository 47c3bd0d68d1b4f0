"""Chameleon's image decoder: codes to pictures, under the names of Meta's `vqgan.ckpt`.

Source: Chameleon (2024), sec. 2.1, after Make-A-Scene (Gafni et al. 2022); sizes are read from the tensors. The
encoder, which no picture needs, is left where it is.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import shapes
from parity.models.discrete.folders import fill, stripped
from parity.models.discrete.vq import AttnBlock, Resample, ResnetBlock, VQConfig, _norm

PREFIXES = ("model.vqmodel.", "vqmodel.", "")  # of a model's folder, or of the tokenizer's own file
WANTED = ("decoder.", "post_quant_conv.", "quantize.embedding.")


class Middle(nn.Module):
    def __init__(self, c: VQConfig, n: int):
        super().__init__()
        self.block_1, self.attn_1, self.block_2 = ResnetBlock(c, n, n), AttnBlock(c, n), ResnetBlock(c, n, n)

    def forward(self, h: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(h)))


class Level(nn.Module):
    def __init__(self, c: VQConfig, n_in: int, n_out: int, last: bool):
        super().__init__()
        self.block = nn.ModuleList(ResnetBlock(c, n_in if i == 0 else n_out, n_out) for i in range(c.res_blocks + 1))
        if not last:
            self.upsample = Resample(n_out, True)

    def forward(self, h: Tensor) -> Tensor:
        for block in self.block:
            h = block(h)
        return self.upsample(h) if hasattr(self, "upsample") else h


class Decoder(nn.Module):
    def __init__(self, c: VQConfig):
        super().__init__()
        widths = [c.ch * m for m in c.ch_mult]
        self.conv_in, self.mid = nn.Conv2d(c.z_channels, widths[-1], 3, padding=1), Middle(c, widths[-1])
        # level i is of the i-th finest pictures: the last is computed first
        self.up = nn.ModuleList(
            Level(c, n_in, n, i == 0) for i, (n, n_in) in enumerate(zip(widths, [*widths[1:], widths[-1]], strict=True))
        )
        self.norm_out, self.conv_out = _norm(widths[0], c), nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.mid(self.conv_in(z))
        for level in reversed(self.up):
            h = level(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Quantizer(nn.Module):
    def __init__(self, c: VQConfig):
        super().__init__()
        self.embedding = nn.Embedding(c.codebook, c.code_dim)


class VQGAN(nn.Module):
    """codes [n, h, w] to pictures [n, 3, H, W] in [-1, 1]."""

    size: dict[str, int]  # of a model's pictures; who loads it sets it

    def __init__(self, c: VQConfig):
        super().__init__()
        self.config, self.quantize, self.decoder = c, Quantizer(c), Decoder(c)
        self.post_quant_conv = nn.Conv2d(c.code_dim, c.z_channels, 1)

    @property
    def codes(self) -> Tensor:
        """The codebook [C, D]."""
        return self.quantize.embedding.weight

    def decode(self, codes: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(self.codes[codes].permute(0, 3, 1, 2)))


def wanted(name: str) -> str | None:
    own = stripped(name, PREFIXES)
    return own if own is not None and own.startswith(WANTED) else None


def sizes(state: Mapping[str, Tensor], path: Path) -> VQConfig:
    """From the shapes of the decoder's tensors; ParityError if they are none."""
    try:
        codebook, code_dim = state["quantize.embedding.weight"].shape
        z_channels = state["post_quant_conv.weight"].shape[0]
        levels = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("decoder.up."))
        widths = [state[f"decoder.up.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)]
        blocks = sum(name.startswith("decoder.up.0.block.") and name.endswith("conv1.weight") for name in state)
        if any(width % widths[0] for width in widths):
            raise ValueError
    except (KeyError, ValueError, IndexError):
        raise ParityError(
            f"{path}: no image decoder of Chameleon; allowed: Meta's vqgan.ckpt, or a safetensors of it, as vq"
        ) from None
    mult = tuple(width // widths[0] for width in widths)
    return VQConfig(codebook, code_dim, widths[0], mult, blocks - 1, z_channels, 32, False)


def load(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> VQGAN:
    """From Meta's file, a safetensors file of it, or a model's folder; ParityError for what holds no decoder."""
    state = {own: entry for name, entry in shapes(path).items() if (own := wanted(name)) is not None}
    config = sizes(state, path)
    return fill(lambda: VQGAN(config), path, wanted, device, dtype)
