"""LlamaGen's image tokenizer: a convolutional encoder and decoder around an L2-normalised codebook.

Source: Sun et al. 2024 (LlamaGen), sec. 3.1; the parameter names are those of the published `vq_ds16_*.pt` files.
The embedded tokenizer is the same module with fewer channels and two down-samplings in place of four.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import header, read_config_as
from parity.base.weights import load_built, read_shapes

MIDDLE = ("block_1", "attn_1", "block_2")  # latent diffusion's layout names the parts of the middle so


@dataclass(frozen=True)
class VQConfig:
    codebook: int = 16384  # there are V = `codebook` codes
    code_dim: int = 8
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # a level's width is this many `ch`; sides are halved between levels
    res_blocks: int = 2
    z_channels: int = 256
    norm_groups: int = 32
    decoder_attention: bool = True  # whether the decoder has attention at its coarsest level, as the encoder has

    @property
    def stride(self) -> int:
        """Image pixels per token, each way."""
        return 2 ** (len(self.ch_mult) - 1)


def _norm(channels: int, c: VQConfig) -> nn.GroupNorm:
    return nn.GroupNorm(c.norm_groups, channels, eps=1e-6)


class ResnetBlock(nn.Module):
    def __init__(self, c: VQConfig, n_in: int, n_out: int):
        super().__init__()
        self.norm1 = _norm(n_in, c)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, padding=1)
        self.norm2 = _norm(n_out, c)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.nin_shortcut(x)


class AttnBlock(nn.Module):
    def __init__(self, c: VQConfig, n: int):
        super().__init__()
        self.norm = _norm(n, c)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(n, n, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend from each position of x [B, C, H, W] to all, and add the result to x."""
        h = self.norm(x)
        q, k, v = (f(h).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))  # [B, H*W, C]
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(h)


class Resample(nn.Module):
    """Half the size with a strided convolution, or twice the size by nearest neighbour and a convolution."""

    def __init__(self, n: int, up: bool):
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(n, n, 3, stride=1 if up else 2, padding=1 if up else 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0) if self.up else F.pad(x, (0, 1, 0, 1)))


class Level(nn.Module):
    def __init__(self, c: VQConfig, n_in: int, n_out: int, blocks: int, attention: bool, down: bool, up: bool):
        """Build a level of `blocks` residual blocks, each with attention after it or not, and a change of the size."""
        super().__init__()
        self.res = nn.ModuleList(ResnetBlock(c, n_in if i == 0 else n_out, n_out) for i in range(blocks))
        self.attn = nn.ModuleList(AttnBlock(c, n_out) if attention else nn.Identity() for _ in range(blocks))
        self.downsample = Resample(n_out, up=False) if down else nn.Identity()
        self.upsample = Resample(n_out, up=True) if up else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        for block, attention in zip(self.res, self.attn, strict=True):
            h = attention(block(h))
        return self.upsample(self.downsample(h))


def _mid(c: VQConfig, n: int) -> nn.ModuleList:
    return nn.ModuleList([ResnetBlock(c, n, n), AttnBlock(c, n), ResnetBlock(c, n, n)])


def _apply_all(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


class Encoder(nn.Module):
    def __init__(self, c: VQConfig):
        """Build the encoder, whose sides are halved after each level but the last."""
        super().__init__()
        widths = [c.ch * m for m in (1, *c.ch_mult)]
        n_down = len(c.ch_mult) - 1
        self.conv_in = nn.Conv2d(3, c.ch, 3, padding=1)
        self.conv_blocks = nn.ModuleList(
            Level(c, widths[i], widths[i + 1], c.res_blocks, i == n_down, down=i < n_down, up=False)
            for i in range(n_down + 1)
        )
        self.mid = _mid(c, widths[-1])
        self.norm_out = _norm(widths[-1], c)
        self.conv_out = nn.Conv2d(widths[-1], c.z_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = _apply_all((self.conv_in, *self.conv_blocks, *self.mid), x)
        return self.conv_out(F.silu(self.norm_out(h)))


class Decoder(nn.Module):
    def __init__(self, c: VQConfig):
        """Build the decoder, from the coarsest level to the finest, with sides doubled between them."""
        super().__init__()
        widths = [c.ch * m for m in c.ch_mult]
        n_up = len(c.ch_mult) - 1
        self.conv_in = nn.Conv2d(c.z_channels, widths[-1], 3, padding=1)
        self.mid = _mid(c, widths[-1])
        self.conv_blocks = nn.ModuleList(
            Level(
                c,
                widths[min(i + 1, n_up)],
                widths[i],
                c.res_blocks + 1,
                c.decoder_attention and i == n_up,
                down=False,
                up=i > 0,
            )
            for i in reversed(range(n_up + 1))
        )
        self.norm_out = _norm(widths[0], c)
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = _apply_all((self.conv_in, *self.mid, *self.conv_blocks), z)
        return self.conv_out(F.silu(self.norm_out(h)))


class Codebook(nn.Module):
    def __init__(self, c: VQConfig):
        super().__init__()
        self.embedding = nn.Embedding(c.codebook, c.code_dim)

    @property
    def codes(self) -> Tensor:
        """The codes as they are used, [V, code_dim]: rows of unit length."""
        return F.normalize(self.embedding.weight, dim=-1)


class VQ(nn.Module):
    """Images [B, 3, H, W] in [-1, 1] to tokens [B, h*w] (raster order) and back."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantize = Codebook(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.z_channels, 1)

    def latents(self, images: Tensor) -> Tensor:
        """Encode images [B, 3, H, W] to unit vectors before quantisation, [B, h, w, code_dim]."""
        return F.normalize(widen(self.quant_conv(self.encoder(images)).permute(0, 2, 3, 1)), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        return (self.latents(images) @ self.quantize.codes.T).argmax(-1).flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens [B, h*w] of a square grid to images [B, 3, H, W]."""
        side = find_side(tokens.shape[1])
        return self.decode_latents(self.quantize.codes[tokens].unflatten(1, (side, side)))

    def decode_latents(self, codes: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(put_channels_first(codes)))


def put_channels_first(x: Tensor) -> Tensor:
    """Copy x [n, h, w, C] to [n, C, h, w]. A view would pass its strides on, and a CPU's GroupNorm is less exact with
    channels last: it errs by some 1e-4 in float32."""
    return x.permute(0, 3, 1, 2).contiguous()


def widen(x: Tensor) -> Tensor:
    """Return x in float32, or in its own dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def mark_above_median(codes: Tensor) -> np.ndarray:
    """Mark codes [V, D] that look alike: bool [G, V], whether their k-th number is above its median, k < G <= 8."""
    first = codes.detach().float().cpu().numpy()[:, :8]
    return (first > np.median(first, axis=0)).T


def diffusion_name(name: str, levels: int) -> str:
    """Rename a parameter from latent diffusion's layout (Meta's, MAR's), where a decoder's `levels` are numbered from
    the finest, to ours."""
    name = re.sub(r"mid\.(block_1|attn_1|block_2)\.", lambda m: f"mid.{MIDDLE.index(m[1])}.", name)
    name = re.sub(r"encoder\.down\.(\d)\.", r"encoder.conv_blocks.\1.", name)
    name = re.sub(r"decoder\.up\.(\d)\.", lambda m: f"decoder.conv_blocks.{levels - 1 - int(m[1])}.", name)
    return re.sub(r"(conv_blocks\.\d)\.block\.", r"\1.res.", name)


def find_side(tokens: int) -> int:
    """Return the tokens a side of a square image of `tokens` tokens. Raises ParityError if that is no square."""
    side = round(tokens**0.5)
    if side * side != tokens:
        raise ParityError(f"tokens per image: {tokens} is not a square grid")
    return side


def read_sizes(shapes_by_name: Mapping[str, tuple[int, ...]]) -> VQConfig:
    """Read a published tokenizer's sizes from the shapes of its tensors. Raises ParityError if it is no tokenizer."""
    try:
        codebook, code_dim = shapes_by_name["quantize.embedding.weight"]
        levels = count_blocks(shapes_by_name, "decoder.conv_blocks.")
        first = "decoder.conv_blocks.0."
        widths = [shapes_by_name[f"decoder.conv_blocks.{i}.res.0.conv1.weight"][0] for i in reversed(range(levels))]
        return VQConfig(
            codebook, code_dim, widths[0], tuple(w // widths[0] for w in widths),
            count_blocks(shapes_by_name, f"{first}res.") - 1, shapes_by_name["post_quant_conv.weight"][0],
            decoder_attention=count_blocks(shapes_by_name, f"{first}attn.") > 0,
        )  # fmt: skip
    except (KeyError, ValueError, IndexError) as error:
        raise ParityError(f"not an image tokenizer of LlamaGen: {error}") from None


def count_blocks(names: Iterable[str], prefix: str) -> int:
    """Count the different numbers that follow a prefix in names."""
    return len({name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)})


def read_config(file: Path) -> VQConfig:
    """Read a tokenizer's sizes from its header if it has one, otherwise from its tensors."""
    if header(file):
        return read_config_as(VQConfig, file)
    try:
        return read_sizes({name: tuple(tensor.shape) for name, tensor in read_shapes(file).items()})
    except ParityError as error:
        raise error if str(file) in str(error) else ParityError(f"{file}: {error}") from None


def load(file: Path, config: VQConfig | None = None, device: str = "cpu") -> VQ:
    """Load a tokenizer in float32, of the sizes `config` or those of its file. Raises ParityError unless they fit."""
    return load_built(partial(VQ, config or read_config(file)), file, ("quantize.codebook_used",), device)


def to_images(pixels: np.ndarray) -> Tensor:
    """Scale pixels, bytes [n, H, W, 3], to images [n, 3, H, W] in [-1, 1]."""
    return put_channels_first(torch.from_numpy(pixels)).float() / 127.5 - 1


def to_pixels(images: Tensor) -> np.ndarray:
    """Convert images [n, 3, H, W] in [-1, 1] to bytes [n, H, W, 3] as LlamaGen: 127.5 x + 128, within [0, 255]."""
    return (127.5 * images + 128).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def truncate_to_pixels(images: Tensor) -> np.ndarray:
    """Convert images [n, 3, H, W] in [-1, 1] to bytes [n, H, W, 3] as Chameleon, Emu3, Janus do: rounded down."""
    return (127.5 * (images.clamp(-1, 1) + 1)).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
