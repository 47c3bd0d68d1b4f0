"""MAR's image tokenizer: a convolutional autoencoder with a Gaussian bottleneck (KL-16), after latent diffusion's.

Source: Li et al. 2024 (MAR), sec. 4.1; Rombach et al. 2022. The encoder and the decoder are LlamaGen's (`vq.py`), whose
tokenizer descends from this one; `rename_published` renames the parameters of `kl16.ckpt` to theirs. The embedded
tokenizer has three down-samplings in place of four: 64x64 images to 8x8 tokens of 16 numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from parity.base.weights import Where, load_network
from parity.models.discrete.vq import Decoder, Encoder, VQConfig, count_blocks, diffusion_name, find_side, widen

LATENTS = "latents"  # this entry of a model's header says by its digest which autoencoder's latents it draws
AVERAGE = "average"  # this entry of a model's header says whether its weights are the moving average of training
NOT_SIZES = (LATENTS, AVERAGE)  # these entries of a header do not describe the architecture


@dataclass(frozen=True)
class KLConfig:
    dim: int = 16  # a token is D = `dim` numbers
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # a level's width is this many `ch`; sides are halved between levels
    res_blocks: int = 2
    norm_groups: int = 32
    decoder_attention: bool = False
    scale: float = 0.2325  # latents are multiplied by it before a model sees them, so that their deviation is about 1

    @property
    def stride(self) -> int:
        """Image pixels per token, each way."""
        return 2 ** (len(self.ch_mult) - 1)


class KL(nn.Module):
    """Images [B, 3, H, W] in [-1, 1] to tokens [B, h*w, D] (raster order) and back."""

    def __init__(self, config: KLConfig):
        super().__init__()
        self.config = config
        shared = {k: getattr(config, k) for k in ("ch", "ch_mult", "res_blocks", "norm_groups", "decoder_attention")}
        c = VQConfig(z_channels=config.dim, **shared)
        self.encoder = Encoder(replace(c, z_channels=2 * config.dim))
        self.decoder = Decoder(c)
        self.quant_conv = nn.Conv2d(2 * config.dim, 2 * config.dim, 1)
        self.post_quant_conv = nn.Conv2d(config.dim, config.dim, 1)

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and log variance of the latents, unscaled, each [B, D, h, w]."""
        mean, log_variance = widen(self.quant_conv(self.encoder(images))).chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def encode(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Encode images [B, 3, H, W] to tokens [B, L, D]: the latents' mean or, with noise [B, D, h, w], a sample."""
        mean, log_variance = self.moments(images)
        z = mean if noise is None else mean + (0.5 * log_variance).exp() * noise
        return self.config.scale * z.flatten(2).transpose(1, 2)

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens [B, L, D] to images [B, 3, H, W] in [-1, 1]. Raises ParityError if L is no square."""
        side = find_side(tokens.shape[1])
        z = tokens.transpose(1, 2).contiguous().unflatten(2, (side, side)) / self.config.scale
        return self.decoder(self.post_quant_conv(z))


def load(file: Path, device: Where = "cpu", dtype: torch.dtype = torch.float32) -> KL:
    """Load an autoencoder of the sizes in its file's header. Raises ParityError unless the weights fit."""
    return load_network(KL, KLConfig, file, (), device, dtype)


def fold(tokens: Tensor, cell: int) -> Tensor:
    """Fold tokens [B, L, D] of a square grid, in raster order, to cells of cell^2 tokens, [B, L / cell^2, cell^2 D]."""
    side = math.isqrt(tokens.shape[1]) // cell
    x = tokens.unflatten(1, (side, cell, side, cell)).transpose(2, 3)
    return x.flatten(3).flatten(1, 2)


def unfold(cells: Tensor, cell: int) -> Tensor:
    """Unfold cells to tokens, the inverse of `fold`."""
    side = math.isqrt(cells.shape[1])
    return cells.unflatten(2, (cell, cell, -1)).unflatten(1, (side, side)).transpose(2, 3).flatten(1, 4)


def select_prefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the entries whose names begin with `prefix`, and remove it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def read_sizes(state: dict[str, Tensor]) -> KLConfig:
    """Read the sizes of a released autoencoder from its published tensors. Raises KeyError for a missing one."""
    ch = len(state["encoder.conv_in.weight"])
    widths = [len(state[f"encoder.down.{i}.block.0.conv2.weight"]) for i in range(count_blocks(state, "encoder.down."))]
    return KLConfig(
        dim=state["post_quant_conv.weight"].shape[1],
        ch=ch,
        ch_mult=tuple(width // ch for width in widths),
        res_blocks=count_blocks(state, "encoder.down.0.block."),
        decoder_attention=any(k.startswith("decoder.up.") and ".attn." in k for k in state),
    )


def rename_published(state: dict[str, Tensor], levels: int = 5) -> dict[str, Tensor]:
    """Rename the tensors of `kl16.ckpt`, of `levels` of resolution, to the names used here; leave out the loss's."""
    return {diffusion_name(k, levels): v for k, v in state.items() if not k.startswith("loss.")}
