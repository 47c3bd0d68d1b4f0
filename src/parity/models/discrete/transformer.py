"""LlamaGen's network (Sun et al. 2024): a causal transformer over image tokens behind a caption (or class) prefix.

The parameter names and shapes are those of the published `t2i_XL_stage{1,2}_*.pt` and `c2i_*.pt` files; the embedded
model is the same module with other numbers in `LlamaGenConfig`. Facts that a re-implementation must get right:

- the 2-D rotary tables are zero (cosine and sine) at prefix positions, so queries and keys there are zero vectors;
- caption embeddings are left-padded; padded keys are masked, with the diagonal kept on;
- the unconditional branch replaces the caption before its projection and keeps the caption's mask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# new keys and values [R, S, H, D] to all that are attended [R, T, H, D]
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class LlamaGenConfig:
    vocab: int = 16384
    dim: int = 1280
    layers: int = 36
    heads: int = 20
    grid: int = 16  # tokens a side
    prefix: int = 120  # caption positions (1 for a class)
    caption_dim: int = 2048  # width of the text encoder; 0 for a class-conditional model
    classes: int = 0
    multiple_of: int = 256
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def hidden(self) -> int:
        wanted = int(2 * 4 * self.dim / 3)
        return -(-wanted // self.multiple_of) * self.multiple_of


def rotary_table(c: LlamaGenConfig) -> Tensor:
    """Cosines and sines [prefix + grid^2, head_dim / 2, 2]: half of the pairs turn with the row, half the column."""
    half = c.dim // c.heads // 2
    frequency = c.rope_base ** -(torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(c.grid).float(), frequency)  # [grid, half / 2]
    angles = torch.cat([angle[:, None].expand(-1, c.grid, -1), angle[None].expand(c.grid, -1, -1)], -1).flatten(0, 1)
    image = torch.stack([angles.cos(), angles.sin()], -1)
    return torch.cat([torch.zeros(c.prefix, *image.shape[1:]), image])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x [R, S, H, D] in interleaved pairs, table [R or 1, S, D / 2, 2]."""
    pairs = x.unflatten(-1, (-1, 2))
    if x.dtype in WIDE and not torch.compiler.is_compiling():  # the same products, in one op
        turned = torch.view_as_complex(pairs) * torch.view_as_complex(table)[:, :, None]
        return torch.view_as_real(turned).flatten(-2)
    cos, sin = table[:, :, None].unbind(-1)
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        eager = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
        if eager and x.device.type == "cpu" and x.dtype in WIDE:  # torch's sums and products, in half as many ops
            eps, n = numbers((self.eps, x.shape[-1]), x.dtype)
            return (x * torch.addcdiv(eps, (x * x).sum(-1, keepdim=True), n).rsqrt_()).mul_(self.weight)
        return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)


@lru_cache
def numbers(values: tuple[float, ...], dtype: torch.dtype) -> list[Tensor]:
    """Constants of an op on a CPU: to make one costs as much as to use it."""
    return [torch.tensor(x, dtype=dtype, device="cpu") for x in values]


class Attention(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.heads = c.heads
        self.wqkv, self.wo = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None) -> Tensor:
        h = self.heads
        made = F.linear(x, self.wqkv.weight).unflatten(-1, (3 * h, -1))
        turned = rotate(made[:, :, : 2 * h], table)
        q, k, v = turned[:, :, :h], turned[:, :, h:], made[:, :, 2 * h :]
        if remember is not None:
            k, v = remember(k, v)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return F.linear(out.transpose(1, 2).flatten(2), self.wo.weight)


class FeedForward(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.w1, self.w3 = nn.Linear(c.dim, c.hidden, bias=False), nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.w1.weight)) * F.linear(x, self.w3.weight), self.w2.weight)


class Block(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = RMSNorm(c.dim, c.eps), RMSNorm(c.dim, c.eps)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None) -> Tensor:
        # `forward` is called by name: a call of a module costs as much as a small product
        x = x + self.attention.forward(self.attention_norm.forward(x), table, mask, remember)
        return x + self.feed_forward.forward(self.ffn_norm.forward(x))


class CaptionProjection(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c.caption_dim, c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, caption: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(caption), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.cap_proj = CaptionProjection(c)
        self.uncond_embedding = nn.Parameter(torch.randn(c.prefix, c.caption_dim) / c.caption_dim**0.5)

    def forward(self, caption: Tensor, dropped: Tensor) -> Tensor:
        """caption [R, prefix, caption_dim]; rows in `dropped` [R] bool become unconditional."""
        caption = torch.where(dropped[:, None, None], self.uncond_embedding, caption)
        return self.cap_proj(caption)


class ClassEmbedder(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.classes, self.embedding_table = c.classes, nn.Embedding(c.classes + 1, c.dim)

    def forward(self, label: Tensor, dropped: Tensor) -> Tensor:
        """label [R]; rows in `dropped` [R] bool take the last entry, the unconditional class."""
        return self.embedding_table(torch.where(dropped, self.classes, label))[:, None]


class Transformer(nn.Module):
    """The network. `forward` sees whole sequences (training, tests); `cached.Cached` decodes with a cache."""

    table: Tensor

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.config = c
        self.cls_embedding = CaptionEmbedder(c) if c.caption_dim else ClassEmbedder(c)
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.output = RMSNorm(c.dim, c.eps), nn.Linear(c.dim, c.vocab, bias=False)
        self.register_buffer("table", rotary_table(c), persistent=False)

    @property
    def kept(self) -> tuple[int, int]:
        """Heads and width of the keys and values of a position."""
        return self.config.heads, self.config.dim // self.config.heads

    def forward(self, condition: Tensor, valid: Tensor, dropped: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, n + 1, V] of positions 0..n given tokens [B, n]; condition, valid [B, prefix]: the captions."""
        return self.output(self.features(condition, valid, dropped, tokens))

    def features(self, condition: Tensor, valid: Tensor, dropped: Tensor, tokens: Tensor) -> Tensor:
        """The hidden states [B, n + 1, dim] that `forward` multiplies with the output matrix."""
        x = torch.cat([self.cls_embedding(condition, dropped), self.tok_embeddings(tokens)], 1)
        mask = prefix_mask(valid, x.shape[1])
        for layer in self.layers:
            x = layer(x, self.table[None, : x.shape[1]], mask)
        return self.norm(x[:, self.config.prefix - 1 :])


def prefix_mask(valid: Tensor, length: int) -> Tensor:
    """Causal mask bool [B, 1, length, length] whose padded prefix keys are off, the diagonal on."""
    i = torch.arange(length, device=valid.device)
    on = F.pad(valid.bool(), (0, length - valid.shape[1]), value=True)
    return ((i[None, :] <= i[:, None]) & on[:, None] | (i[None, :] == i[:, None]))[:, None]
