"""xAR: the next cell of k x k tokens by flow matching, after noisy earlier cells (in training); class-conditional.

Source: Ren et al. 2025 (xAR), sec. 3; the layout, the sampler and the guidance of the released code, whose parameter
names these are (its buffers `mask` and `rope.*` are computed here). The released weights have k = 8, four cells of a
16x16 grid. The continuous-speculation paper reads them with k = 1 (appendix D), token by token: `regroup`.

Words. Cells are in raster order, and the tokens of a cell in raster order within it. A *rank* is a cell, so a
decoder sees L = cells tokens of k*k*D numbers; `fold` and `unfold` go between them and the grid. x_t = (1 - t) x + t
noise, and the network's velocity is noise - x.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from parity_decoders.protocols.continuous import Affine, PathNoise, select_tokens_before
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.models.continuous.diffusion import HeadSampling, TimeEmbedding, Trajectory, select_step, walk
from parity.models.continuous.kl import fold, unfold
from parity.models.continuous.mar import read_trunk

FAMILY = {  # see models.continuous
    "condition": "class",
    "causal": True,
    "single_path": False,
    "samplers": ("ddpm",),
    "schedules": ("linear",),
    "released": {"grid": 16, "cell": 8},
    "sampled": {  # the released commands evaluate a model of each width so
        768: {"steps": 40, "guidance": 2.7, "guidance_schedule": "linear", "last": "mean"},
        1024: {"steps": 50, "guidance": 2.3, "guidance_schedule": "linear", "last": "mean"},
        1280: {"steps": 50, "guidance": 2.2, "guidance_schedule": "linear", "last": "mean"},
    },
    "tensors": ("class_emb.weight", "pred.weight", "z_proj_ln.weight"),
    "reads": ("steps", "temperature", "guidance", "guidance_schedule", "last"),
}

RELEASED_CELL = 8  # tokens a side of a cell of the released networks, which no file says
CLEANEST = 0.04  # the last step goes from this time to 0; the released sampler takes its mean
KeysValues = tuple[Tensor, Tensor]  # these are keys and values of S tokens, each [N, heads, S, width / heads]


@dataclass(frozen=True)
class XARConfig:
    classes: int = 1000
    grid: int = 16  # an image has this many tokens a side
    cell: int = 8  # a cell has k = `cell` tokens a side
    dim: int = 16  # a token is D = `dim` numbers
    width: int = 768
    encoder: int = 8  # the encoder has this many blocks
    decoder: int = 8
    heads: int = 12

    @property
    def tokens(self) -> int:
        return self.grid**2

    @property
    def cells(self) -> int:
        return (self.grid // self.cell) ** 2


def compute_rotations(c: XARConfig) -> Tensor:
    """Compute angles [tokens, width / heads / 2], cell by cell: half turn with a token's row, half with its column."""
    per_axis = c.width // c.heads // 2
    frequencies = 1 / 10000 ** (torch.arange(0, per_axis, 2) / per_axis)
    angles = torch.arange(c.grid)[:, None] * frequencies
    grid = torch.cat([angles[:, None].expand(-1, c.grid, -1), angles[None].expand(c.grid, -1, -1)], -1)
    return fold(grid.flatten(0, 1)[None], c.cell).view(c.tokens, -1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of neighbouring numbers of x [N, heads, S, width / heads] by angles [..., S, width / heads / 2]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor, earlier: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Attend from x [N, S, width] to itself and `earlier` tokens; return the result and the new keys and values."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, angles), rotate(k, angles)
        keys, values = (k, v) if earlier is None else (torch.cat([earlier[0], k], 2), torch.cat([earlier[1], v], 2))
        return self.proj(F.scaled_dot_product_attention(q, keys, values, mask).transpose(1, 2).flatten(2)), (k, v)


class SwiGLU(nn.Module):
    """Named for its shape; the gate is a GELU, as released."""

    def __init__(self, width: int):
        """Build a gated MLP whose hidden width is 8/3 of its width."""
        super().__init__()
        hidden = int(width * 4 * 2 / 3)
        self.fc1_g = nn.Linear(width, hidden)
        self.fc1_x = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1_g(x)) * self.fc1_x(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        """Build a transformer block whose shifts, scales and gates a condition gives; it starts as the identity."""
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)  # without parameters, it serves twice
        self.attn = Attention(width, heads)
        self.mlp = SwiGLU(width)
        self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        for p in self.ada_lin[1].parameters():  # gates of 0 make the block start as the identity
            nn.init.zeros_(p)

    def forward(
        self, x: Tensor, y: Tensor, angles: Tensor, mask: Tensor, earlier: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """Run the block on x [N, cells, k*k, width] with conditions y [N, cells or 1, 1, width]; angles [N or 1, 1, S,
        .] of S = cells * k*k tokens. Return x, and its keys and values."""
        gate1, gate2, scale1, scale2, shift1, shift2 = self.ada_lin(y).chunk(6, -1)
        h, keys_values = self.attn((self.norm(x) * (1 + scale1) + shift1).flatten(1, 2), angles, mask, earlier)
        x = x + h.view_as(x) * gate1
        return x + self.mlp(self.norm(x) * (1 + scale2) + shift2) * gate2, keys_values


class XARNet(nn.Module):
    def __init__(self, c: XARConfig):
        """Build the network. Raises ParityError unless the cell divides the grid, and 4 x heads the width."""
        super().__init__()
        if c.grid % c.cell:
            raise ParityError(f"cell {c.cell}: allowed: a divisor of grid {c.grid}")
        if c.width % (4 * c.heads):
            raise ParityError(f"width {c.width}: allowed: a multiple of 4 x heads {c.heads}")
        self.config = c
        d = c.width
        self.class_emb = nn.Embedding(c.classes + 1, d)  # the last class stands for no class
        self.time_embed = TimeEmbedding(d)
        self.z_proj = nn.Linear(c.dim, d)
        self.z_proj_ln = nn.RMSNorm(d, eps=1e-6)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, d))
        self.encoder_blocks = nn.ModuleList(Block(d, c.heads) for _ in range(c.encoder))
        self.encoder_norm = nn.RMSNorm(d, eps=1e-6)
        self.decoder_embed = nn.Linear(d, d)
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, d))
        self.decoder_blocks = nn.ModuleList(Block(d, c.heads) for _ in range(c.decoder))
        self.decoder_norm = nn.RMSNorm(d, eps=1e-6)
        self.pred = nn.Linear(d, c.dim)
        self.register_buffer("angles", compute_rotations(c), persistent=False)
        for p in (self.encoder_pos_embed_learned, self.decoder_pos_embed_learned, self.class_emb.weight):
            nn.init.normal_(p, std=0.02)

    def forward(
        self, cells: Tensor, t: Tensor, labels: Tensor, ranks: Tensor, mask: Tensor, earlier: Sequence[KeysValues] = ()
    ) -> tuple[Tensor, list[KeysValues]]:
        """Compute velocities [N, n, k*k*D] of `cells` [N, n, k*k*D] of `ranks` [N or 1, n], at times t [N or 1, n or
        1]; labels [N], below 0: none.

        mask bool [.., n * k*k, keys]: what each token reads, first of the keys and values `earlier`, one pair for each
        block, then of the tokens given here; their own keys and values come back.
        """
        c = self.config
        area = self.config.cell**2
        label = self.class_emb(torch.where(labels < 0, c.classes, labels))
        thousandths = (t * 1000).long().flatten()  # the released code rounds down to whole thousandths
        y = label[:, None, None] + self.time_embed(thousandths).view(*t.shape, 1, -1)
        token_numbers = ranks[..., None] * area + torch.arange(area, device=ranks.device)
        angles = self.angles[token_numbers.flatten(1)][:, None]  # type: ignore[index]
        x = self.z_proj_ln(
            self.z_proj(cells.unflatten(-1, (area, c.dim))) + self.encoder_pos_embed_learned[0, token_numbers]
        )
        keys_values: list[KeysValues] = []
        for i, block in enumerate((*self.encoder_blocks, *self.decoder_blocks)):
            if i == c.encoder:
                x = self.decoder_embed(self.encoder_norm(x)) + self.decoder_pos_embed_learned[0, token_numbers]
            x, new_keys_values = block(x, y, angles, mask, earlier[i] if earlier else None)
            keys_values.append(new_keys_values)
        return self.pred(self.decoder_norm(x)).to(cells.dtype).flatten(2), keys_values

    def read(self, cells: Tensor, t: Tensor, labels: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Run `forward` on the first n cells [N, n, k*k*D], each of which reads itself and those before it."""
        ranks = torch.arange(cells.shape[1], device=cells.device)
        number = ranks.repeat_interleave(self.config.cell**2)
        return self(cells, t, labels, ranks[None], number <= number[:, None])


class Context(NamedTuple):
    """What B*n ranks read: keys and values of the clean cells before the last rank, of B rows; with guidance 2B."""

    earlier: list[KeysValues]
    labels: Tensor  # [B or 2B] class of each row, below 0 for no class
    ranks: Tensor  # [B, n] the cells that are predicted


@dataclass
class Flow:
    """A flow with noise as a `Chain`: Euler-Maruyama from t = 1 to 0.04, then to 0, with diffusion 2t: the drift is
    (2 - t) v + x, every step a Gaussian. The released sampler takes the last one's mean; `HeadSampling.last` says which
    is drawn. A prediction is of x_0, t v away from x_t."""

    net: XARNet
    sampling: HeadSampling
    length: int  # an image has L = `length` cells
    context: Context
    noisy = True

    def __post_init__(self) -> None:
        self.steps, self.last = self.sampling.steps, str(self.sampling.last)

    @property
    def prior(self) -> Tensor:
        return self.net.pred.weight.new_zeros(self.net.config.cell**2 * self.net.config.dim)

    def times(self, i: int | Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """Compute, for steps i, the time t of x_i, the weights of x_0 and x_i in the mean, and the deviation. The
        velocity is (x - x_0) / t, the mean x - (t - after) ((2 - t) v + x), `after` the time of x_{i-1}."""
        t = torch.linspace(1, CLEANEST, self.steps, dtype=torch.float64).flip(0)
        step = t - torch.cat([t.new_zeros(1), t[:-1]])
        of_start = step * (2 - t) / t
        std = self.sampling.temperature * (2 * t * step).sqrt()
        return select_step(torch.stack([t, of_start, 1 - of_start - step, std], -1), i, like)

    def predict(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Predict x_0, with guidance, at points x [B*n, D] or [B*n, K, D] of steps i, in one pass over all."""
        s, (earlier, labels, ranks) = self.sampling, self.context
        B, n = ranks.shape
        points = x.numel() // (B * n * x.shape[-1])
        area = self.net.config.cell**2
        ranks = ranks.repeat_interleave(points, 1)
        time = self.times(i, x)[0]
        t = time[..., 0].reshape(B, n * points) if time.ndim else x.new_full((1, 1), float(time))
        clean = torch.arange(earlier[0][0].shape[2], device=x.device) // area
        number = torch.arange(n * points, device=x.device).repeat_interleave(area)
        same_cell = (number == number[:, None]).expand(B, -1, -1)
        mask = torch.cat([clean < ranks[:, number][..., None], same_cell], 2)[:, None]
        cells = x.reshape(B, n * points, -1)
        guided = len(labels) > B
        double = (lambda v: torch.cat([v, v])) if guided else (lambda v: v)
        v, _ = self.net(double(cells), double(t) if time.ndim else t, labels, double(ranks), double(mask), earlier)
        if guided:
            linear = s.guidance_schedule == "linear"
            share = ranks.to(x.dtype) / max(1, self.length - 1) if linear else torch.ones_like(ranks)
            v = v[B:] + (1 + (s.guidance - 1) * share.to(x.dtype))[..., None] * (v[:B] - v[B:])
        return x - time * v.reshape(x.shape)

    def predict_where(self, mask: Tensor, x: Tensor, i: Tensor) -> Tensor:
        """Predict x_0 [M, D] at the points of x [N, K, D] that `mask` [N, K] marks. All points from the first marked
        step on are run, because each point alone would need a copy of its row's context."""
        first = int(mask.any(0).int().argmax())
        return self.predict(x[:, first:], i[:, first:])[mask[:, first:]]

    def gaussian(self, i: int | Tensor, prediction: Tensor) -> Affine:
        """Compute the Gaussians of x_{i-1} given x_i under predictions of x_0, as functions of x_i, at steps i."""
        _, of_start, of_x, std = self.times(i, prediction)
        one = torch.ones_like(prediction)
        return Affine(of_start * prediction, of_x * one, std * one)

    def __len__(self) -> int:
        return self.context.ranks.numel()

    def take(self, which: Tensor) -> "Flow":
        """Select the steps of the tokens `which` [M], indices, each with a copy of its row's context."""
        earlier, labels, ranks = self.context
        row = which // ranks.shape[1]
        row_of_each = torch.cat([row, row + len(ranks)]) if len(labels) > len(ranks) else row
        context = Context(
            [(k[row_of_each], v[row_of_each]) for k, v in earlier], labels[row_of_each], ranks.flatten()[which, None]
        )
        return Flow(self.net, self.sampling, self.length, context)


@dataclass
class XAR:
    """Satisfies `ContinuousModel` with ranks that are cells, in raster order.

    A condition is one pass over the clean cells; a walk is T passes of the network over the B*n cells, each of which
    reads the clean cells before it and itself. Guidance grows with the rank as released, 1 + (g - 1) i / (L - 1), or
    is constant.
    """

    net: XARNet
    labels: Tensor  # [B] class of each image
    sampling: HeadSampling
    raster = True

    def __post_init__(self) -> None:
        c = self.net.config
        self.length = c.cells
        self.dim = c.cell**2 * c.dim
        self.steps = self.sampling.steps

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> Context:
        """Read the clean cells before the last of `ranks` [B, n]; with guidance twice, with labels and without. Raises
        ValueError, on a CPU, if a cell before a rank is not known."""
        labels = self.labels
        clean = select_tokens_before(tokens, ranks, n_known, self.length)
        if self.sampling.guidance != 1:
            labels, clean = torch.cat([labels, torch.full_like(labels, -1)]), torch.cat([clean, clean])
        _, earlier = self.net.read(clean, clean.new_zeros(1, 1), labels)
        return Context(earlier, labels, ranks)

    def chain(self, condition: Any) -> "Flow":
        return Flow(self.net, self.sampling, self.length, condition)

    def distribution(self, condition: Any, path: PathNoise) -> Trajectory:
        return walk(self.chain(condition), path)

    def take(self, rows: Tensor) -> "XAR":
        return XAR(self.net, self.labels[rows], self.sampling)


def read_config(state: dict[str, Tensor]) -> XARConfig:
    """Read the sizes of a released network from the shapes of its tensors. Raises KeyError for a missing entry."""
    classes = len(state["class_emb.weight"]) - 1
    n_tokens = state["encoder_pos_embed_learned"].shape[1]
    grid = math.isqrt(n_tokens)
    return XARConfig(classes=classes, grid=grid, cell=min(RELEASED_CELL, grid), **read_trunk(state))


def regroup(state: dict[str, Tensor], config: XARConfig, cell: int) -> dict[str, Tensor]:
    """Regroup weights for cells of `cell` tokens a side: every position keeps its embedding, and the tables of
    positions, which are in the order of the cells, get that of the new ones. config: the sizes before."""
    state = dict(state)
    for name in ("encoder_pos_embed_learned", "decoder_pos_embed_learned"):
        raster = unfold(state[name].view(1, config.cells, -1), config.cell)
        state[name] = fold(raster, cell).view_as(state[name]).clone()
    return state


Config = XARConfig
Network = XARNet
Model = XAR
