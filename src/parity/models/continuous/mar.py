"""MAR: masked autoregressive image generation with a diffusion head, class-conditional.

Source: Li et al. 2024; parameter names and shapes are those of the published `mar_*.pth` files.

The encoder reads the known tokens, after a buffer that holds the class. The decoder reads them at their positions, with
a learned mask token everywhere else, and gives a condition z for every unknown position. Attention is bidirectional, so
conditions that know one more token need another pass.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from parity_decoders.protocols.continuous import PathNoise
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.models.continuous.diffusion import HeadNet, HeadSampling, Steps, Trajectory, walk
from parity.models.discrete.vq import count_blocks

FAMILY = {  # see models.continuous
    "condition": "class",
    "causal": False,
    "single_path": True,
    "samplers": ("ddpm", "ddim"),
    "schedules": ("linear", "constant"),
    "released": {"grid": 16},
    "sampled": {  # the released commands evaluate a model of each width so
        768: {"steps": 100, "guidance": 2.9, "guidance_schedule": "linear", "last": "mean"},
        1024: {"steps": 100, "guidance": 3.0, "guidance_schedule": "linear", "last": "mean"},
        1280: {"steps": 100, "guidance": 3.2, "guidance_schedule": "linear", "last": "mean"},
    },
    "tensors": ("class_emb.weight", "diffloss.net.input_proj.weight"),
    "reads": ("steps", "sampler", "eta", "temperature", "guidance", "guidance_schedule", "clip", "last"),
}


@dataclass(frozen=True)
class MARConfig:
    classes: int = 1000
    grid: int = 16  # an image has this many tokens a side
    dim: int = 16  # a token is D = `dim` numbers
    width: int = 768
    encoder: int = 12  # the encoder has this many blocks
    decoder: int = 12
    heads: int = 12
    buffer: int = 64
    head_width: int = 1024
    head_depth: int = 6

    @property
    def tokens(self) -> int:
        return self.grid**2


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        """Build a transformer block, normalised before attention and MLP."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class DiffLoss(nn.Module):
    """Only a name: the published head lies under `diffloss.net`."""

    def __init__(self, *sizes: int):
        super().__init__()
        self.net = HeadNet(*sizes)


class MARNet(nn.Module):
    """The network. The encoder reads known tokens alone, so an early step costs a fraction of a late one."""

    def __init__(self, c: MARConfig):
        super().__init__()
        self.config = c
        d = c.width
        n_positions = c.buffer + c.tokens
        self.class_emb = nn.Embedding(c.classes, d)
        self.fake_latent = nn.Parameter(torch.zeros(1, d))
        self.z_proj = nn.Linear(c.dim, d)
        self.z_proj_ln = nn.LayerNorm(d, eps=1e-6)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, n_positions, d))
        self.encoder_blocks = nn.ModuleList(Block(d, c.heads) for _ in range(c.encoder))
        self.encoder_norm = nn.LayerNorm(d, eps=1e-6)
        self.decoder_embed = nn.Linear(d, d)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, d))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, n_positions, d))
        self.decoder_blocks = nn.ModuleList(Block(d, c.heads) for _ in range(c.decoder))
        self.decoder_norm = nn.LayerNorm(d, eps=1e-6)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, d))
        self.diffloss = DiffLoss(c.dim, d, c.head_width, c.head_depth)
        positions = (self.encoder_pos_embed_learned, self.decoder_pos_embed_learned, self.diffusion_pos_embed_learned)
        for p in (*positions, self.mask_token, self.fake_latent, self.class_emb.weight):
            nn.init.normal_(p, std=0.02)

    def embed_class(self, labels: Tensor) -> Tensor:
        """Embed labels [N] to [N, width]; a label below 0 stands for no class."""
        return torch.where(labels[:, None] < 0, self.fake_latent, self.class_emb(labels.clamp(min=0)))

    def encode(self, tokens: Tensor, is_known: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the encoder on known tokens: tokens [N, L, D], is_known [N, L] bool (others are not read), buffer [N,
        width].

        Returns x [N, buffer + S, width], where S is the largest number of known tokens (on a GPU, L); their grid
        positions [N, S], in raster order; and which of them are tokens, not padding, [N, S].
        """
        c, n = self.config, len(tokens)
        counts = is_known.sum(1)
        static = tokens.device.type != "cpu"  # on a GPU every position is read, so that it need not synchronise
        n_read = c.tokens if static else int(counts.max()) if n else 0
        known_first = torch.argsort(is_known.to(torch.int8), dim=1, descending=True, stable=True)
        positions = known_first[:, :n_read]  # the known positions come first, in raster order
        is_token = torch.arange(n_read, device=tokens.device) < counts[:, None]
        x = self.z_proj(tokens.gather(1, positions[..., None].expand(-1, -1, c.dim)))
        x = torch.cat([buffer[:, None].expand(-1, c.buffer, -1).to(x.dtype), x], 1)
        position = self.encoder_pos_embed_learned[0]
        x = self.z_proj_ln(x + torch.cat([position[: c.buffer].expand(n, -1, -1), position[c.buffer + positions]], 1))
        mask = (
            None if not static and bool(is_token.all()) else F.pad(is_token, (c.buffer, 0), value=True)[:, None, None]
        )
        for block in self.encoder_blocks:
            x = block(x, mask)
        return self.encoder_norm(x), positions, is_token

    def decode(self, x: Tensor, positions: Tensor, is_token: Tensor) -> Tensor:
        """Run the decoder on what `encode` returns: conditions z [N, L, width] of all grid positions."""
        c, n = self.config, len(x)
        x = self.decoder_embed(x)
        # there is one position more than tokens, to which padding is written
        all_positions = self.mask_token.to(x.dtype).repeat(n, c.tokens + 1, 1)
        target = torch.where(is_token, positions, c.tokens)
        all_positions = all_positions.scatter(1, target[..., None].expand(-1, -1, c.width), x[:, c.buffer :])[:, :-1]
        x = torch.cat([x[:, : c.buffer], all_positions], 1) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_norm(x)[:, c.buffer :] + self.diffusion_pos_embed_learned

    def forward(self, tokens: Tensor, is_known: Tensor, labels: Tensor) -> Tensor:
        """Compute z [N, L, width] of all positions from tokens [N, L, D], is_known [N, L] bool and labels [N]."""
        return self.decode(*self.encode(tokens, is_known, self.embed_class(labels)))


def make_known_mask(order: Tensor, n_known: Tensor) -> Tensor:
    """Mark the grid positions [N, L] bool of the first `n_known` [N] ranks of `order` [N, L]."""
    is_known = torch.arange(order.shape[1], device=order.device) < n_known[:, None]
    return torch.zeros_like(is_known).scatter(1, order, is_known)


def compute_guidance(sampling: HeadSampling, n_done: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Compute the guidance [N] where n_done [N] of `length` tokens are known: linear (MAR, app. B) or constant."""
    linear = sampling.guidance_schedule == "linear"
    share = n_done.clamp(max=length - 1).to(dtype) / length if linear else torch.ones_like(n_done, dtype=dtype)
    return 1 + (sampling.guidance - 1) * share


@dataclass
class MAR:
    """Satisfies `ContinuousModel`. Attention is bidirectional: every condition is a pass of the network of its own."""

    net: MARNet
    labels: Tensor  # [B] class of each image, or [B, P] prompts of Harmon
    sampling: HeadSampling
    raster = False

    def __post_init__(self) -> None:
        self.length = self.net.config.tokens
        self.dim = self.net.config.dim
        self.steps = self.sampling.steps

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> Steps:
        """Compute conditions, guided and unguided, of ranks [B, n] given the first n_known [B, n or 1] tokens of the
        order [B, L]; pairs of a row that know the same tokens share one evaluation."""
        B, n = ranks.shape
        is_shared = n_known.shape[1] == 1
        rows = torch.arange(B, device=tokens.device)
        if is_shared:
            count = n_known[:, 0]
            evaluation = rows.repeat_interleave(n)
        else:
            pairs, evaluation = (rows[:, None] * self.length + n_known).flatten().unique(return_inverse=True)
            rows = pairs // self.length
            count = pairs % self.length
        mask = make_known_mask(order[rows], count)
        position = order.gather(1, ranks).flatten()

        def read(labels: Tensor) -> Tensor:
            """Run the network with these labels [B]: conditions [B*n, width] at the positions of the ranks."""
            return self.net(tokens[rows], mask, labels[rows])[evaluation, position]

        head = self.net.diffloss.net
        if self.sampling.guidance == 1:
            return Steps(head, self.sampling, read(self.labels))
        n_done = (n_known + (n if is_shared else 1)).expand(B, n).flatten()
        scale = compute_guidance(self.sampling, n_done, self.length, tokens.dtype)
        conditional, unconditional = read(self.labels), read(torch.full_like(self.labels, -1))
        return Steps(head, self.sampling, conditional, unconditional, scale)

    def distribution(self, condition: Any, path: PathNoise) -> Trajectory:
        return walk(condition, path)

    def chain(self, condition: Any) -> Steps:
        return condition

    def take(self, rows: Tensor) -> "MAR":
        return MAR(self.net, self.labels[rows], self.sampling)


WIDE_HEADS = {1280: 16}  # the huge networks, of width 1280, have 16 heads; the others' are 64 wide


def read_trunk(state: dict[str, Tensor]) -> dict[str, int]:
    """Read width, heads, numbers a token (dim) and blocks of encoder and decoder from the tensors of a released MAR or
    xAR. Raises KeyError for a missing entry, ParityError for a width that no head divides."""
    width, dim = state["z_proj.weight"].shape
    if width not in WIDE_HEADS and (width % 64 or not width):
        raise ParityError(f"width {width}: allowed: a multiple of 64, as of all released sizes")
    blocks = {half: count_blocks(state, f"{half}_blocks.") for half in ("encoder", "decoder")}
    return {"width": width, "heads": WIDE_HEADS.get(width, width // 64), "dim": dim, **blocks}


def read_config(state: dict[str, Tensor]) -> MARConfig:
    """Read the sizes of a released network from the shapes of its tensors. Raises KeyError for a missing entry."""
    sizes = read_trunk(state)
    tokens, n_positions = (state[f"{k}_pos_embed_learned"].shape[1] for k in ("diffusion", "encoder"))
    return MARConfig(
        **sizes,
        classes=len(state["class_emb.weight"]),
        grid=math.isqrt(tokens),
        buffer=n_positions - tokens,
        head_width=len(state["diffloss.net.input_proj.weight"]),
        head_depth=count_blocks(state, "diffloss.net.res_blocks."),
    )


Config = MARConfig
Network = MARNet
Model = MAR
