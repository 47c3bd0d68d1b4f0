"""The network of families that are language models too: a causal transformer as Llama (Touvron et al. 2023, sec. 2.2).

Rotary embedding in one dimension, in transformers' layout (a head's first half turns with its second), grouped queries,
RMSNorm, SwiGLU; Chameleon's has LayerNorms of queries and keys, too. Parameter names and numbers are transformers', so
its files are read as they are; the forward is ours, since a window's rows stand at different positions and a tree's
nodes see their branch alone. Facts that a re-implementation must get right:

- cosines and sines are float32, rounded to the network's dtype once;
- what RMSNorm has normalised is rounded to the dtype before its weight multiplies it;
- Chameleon's norms of queries and keys have statistics of a head, at an epsilon of 1e-5 whatever the configuration
  says, and a weight and a bias for each head (Chameleon, sec. 2.2, for the reason; transformers for the layout).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.models.discrete.transformer import Remember

NEVER = -1e30  # the logit of a token that is never chosen: finite, so that guidance may subtract two of them


@dataclass(frozen=True)
class LlamaConfig:
    vocab: int  # words and codes, of the embedding
    dim: int
    layers: int
    heads: int
    kept_heads: int  # heads of keys and values
    head_dim: int
    hidden: int
    places: int  # positions it was made for
    rope_base: float
    eps: float
    normed: bool = False  # queries and keys


def rotary_table(places: int, width: int, base: float) -> Tensor:
    """Cosines and sines [places, width / 2, 2], float32."""
    frequency = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    angles = torch.arange(places)[:, None].float() * frequency
    return torch.stack([angles.cos(), angles.sin()], -1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x [R, S, H, D], its halves turned against each other; table [R or 1, S, D / 2, 2]."""
    cos, sin = table[:, :, None].unbind(-1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.rms_norm(x, self.weight.shape, None, self.eps)


class HeadNorm(nn.Module):
    """LayerNorm of each head, with its own weight and bias [H, D]."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(heads, width)), nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape[-1:], eps=1e-5) * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.width, self.grouped = c.head_dim, c.heads != c.kept_heads
        self.q_proj = nn.Linear(c.dim, c.heads * c.head_dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(c.dim, c.kept_heads * c.head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)
        self.q_norm = HeadNorm(c.heads, c.head_dim) if c.normed else nn.Identity()
        self.k_norm = HeadNorm(c.kept_heads, c.head_dim) if c.normed else nn.Identity()

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.width)) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), table), rotate(self.k_norm(k), table)
        if remember is not None:
            k, v = remember(k, v)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.grouped)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c.dim, c.hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), FeedForward(c)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.dim, c.eps), RMSNorm(c.dim, c.eps)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table, mask, remember)
        return x + self.mlp(self.post_attention_layernorm(x))


class Codes(nn.Module):
    """Image codes among the words of one vocabulary: the rows of the output matrix that are codes.

    ids [V]: what the model calls its tokens, the codes in the image tokenizer's order, then what the grammar forces;
    those are never chosen, so the output matrix lacks them.
    """

    ids: Tensor

    def __init__(self, dim: int, ids: Tensor, codes: int):
        super().__init__()
        self.chosen = nn.Linear(dim, codes, bias=False)
        self.register_buffer("ids", ids, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.pad(self.chosen(hidden), (0, len(self.ids) - self.chosen.out_features), value=NEVER)

    def embeddings(self, words: Tensor) -> Tensor:
        """What the network reads of each token, [V, dim], given its embedding of words."""
        return words[self.ids]


class Llama(nn.Module):
    """The network; `cached.Cached` decodes with it. `output` [.., dim] -> [.., V] knows the image's tokens."""

    table: Tensor

    def __init__(self, c: LlamaConfig, output: nn.Module):
        super().__init__()
        self.config, self.output = c, output
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.dim, c.eps)
        self.register_buffer("table", rotary_table(c.places, c.head_dim, c.rope_base), persistent=False)

    @property
    def kept(self) -> tuple[int, int]:
        """Heads and width of the keys and values of a position."""
        return self.config.kept_heads, self.config.head_dim
