"""LlamaGen (Sun et al. 2024): a causal transformer over image tokens behind a caption (or class) prefix.

The parameter names and shapes are those of the published `t2i_XL_stage{1,2}_*.pt` and `c2i_*.pt` files; the embedded model is the same module
with other numbers in `LlamaGenConfig`. Facts that a re-implementation must get right, all tested in tests/test_llamagen.py:

- the 2-D rotary tables are zero (cosine and sine) at prefix positions, so queries and keys there are zero vectors;
- caption embeddings are left-padded; padded keys are masked, with the diagonal kept on;
- the unconditional branch replaces the caption before its projection and keeps the caption's mask.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from parity.models.discrete.protocol import Drafter, TokenModel
from parity.models.discrete.trees import ancestors


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
    """Cosines and sines [prefix + grid^2, head_dim / 2, 2]: half of the pairs turn with the row, half with the column."""
    half = c.dim // c.heads // 2
    frequency = c.rope_base ** -(torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(c.grid).float(), frequency)  # [grid, half / 2]
    angles = torch.cat([angle[:, None].expand(-1, c.grid, -1), angle[None].expand(c.grid, -1, -1)], -1).flatten(0, 1)
    image = torch.stack([angles.cos(), angles.sin()], -1)
    return torch.cat([torch.zeros(c.prefix, *image.shape[1:]), image])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x [R, S, H, D] in interleaved pairs, table [R or 1, S, D / 2, 2]."""
    pairs, (cos, sin) = x.unflatten(-1, (-1, 2)), table[:, :, None].unbind(-1)
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


Remember = Callable[
    [Tensor, Tensor], tuple[Tensor, Tensor]
]  # new keys and values [R, S, H, D] to all that are attended [R, T, H, D]


class Attention(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.heads = c.heads
        self.wqkv, self.wo = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.wqkv(x).chunk(3, -1))
        q, k = rotate(q, table), rotate(k, table)
        if remember is not None:
            k, v = remember(k, v)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.w1, self.w3 = nn.Linear(c.dim, c.hidden, bias=False), nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = RMSNorm(c.dim, c.eps), RMSNorm(c.dim, c.eps)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table, mask, remember)
        return x + self.feed_forward(self.ffn_norm(x))


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
    """The network. `forward` sees whole sequences (training, tests); `LlamaGen` below decodes with a cache."""

    table: Tensor

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.config = c
        self.cls_embedding = CaptionEmbedder(c) if c.caption_dim else ClassEmbedder(c)
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.output = RMSNorm(c.dim, c.eps), nn.Linear(c.dim, c.vocab, bias=False)
        self.register_buffer("table", rotary_table(c), persistent=False)

    def forward(self, condition: Tensor, valid: Tensor, dropped: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, n + 1, V] of positions 0..n given tokens [B, n]; condition and valid [B, prefix] as from the text encoder."""
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


class LlamaGen:
    """A batch of captions ready to be decoded: the token-model protocol over `Transformer`, with a static cache.

    Rows come in pairs when guidance is on: the first B rows are conditional, the last B unconditional (one forward for both).
    Position -1 is the last prefix position: its "token" is the prefix embedding itself, whatever id is given.
    A hole, a position that was never fed before one that was, is masked.
    On a CPU a row whose picture is done is computed no more (the slowest of 32 takes half as many passes again as their mean), unless it
    `returns`: a draft model's rows do, which draft past the end before the target has accepted it.
    """

    codebook: Tensor | None = None  # these four: see TokenModel; who builds the model sets them
    raw_codebook: Tensor | None = None
    drafter: Drafter | None = None
    draft: TokenModel | None = None

    def __init__(self, net: Transformer, condition: Tensor, valid: Tensor, guided: bool, returns: bool = False):
        c, self.returns = net.config, returns
        self.embeddings = net.tok_embeddings.weight
        self.net, self.vocab, self.length, self.width = net, c.vocab, c.grid**2, c.grid
        self.forced = torch.full((self.length,), -1, device=condition.device)  # no grammar: raster order, no separators
        dropped = torch.zeros(len(condition), dtype=torch.bool, device=condition.device)
        if guided:
            condition, valid, dropped = (
                torch.cat([condition] * 2),
                torch.cat([valid] * 2),
                torch.cat([dropped, ~dropped]),
            )
        prefix = net.cls_embedding(condition, dropped)
        rows, total = len(prefix), c.prefix + self.length
        shape = (rows, total, c.heads, c.dim // c.heads)
        self.cache = [
            (prefix.new_zeros(shape), prefix.new_zeros(shape)) for _ in net.layers
        ]  # one K and one V per layer
        self.on = F.pad(
            valid.bool(), (0, self.length)
        )  # [rows, total] slots that are attended: of the image, those that were fed
        self.going = torch.arange(
            rows, device=prefix.device
        )  # [rows] whose pictures are not done: cache, on and last hold these alone
        self.beside: list[tuple[Tensor, Tensor]] = []  # keys and values of the last tree's nodes, layer by layer
        self.last = prefix[:, -1]
        self.features: Tensor | None = (
            None  # [rows, L + 1, dim] hidden states at position + 1, where a drafter wants them kept
        )
        if c.prefix > 1:
            self._forward(prefix[:, :-1], torch.arange(c.prefix - 1, device=prefix.device).expand(rows, -1))

    def _forward(self, x: Tensor, slots: Tensor) -> Tensor:
        """x [R, S, dim] at cache slots [R, S]; returns hidden states [R, S, dim] before the output matrix."""
        # Keys beyond the furthest slot are never attended; leaving them out halves attention on a CPU, where asking costs nothing.
        live = int(slots.max()) + 1 if x.device.type == "cpu" else self.on.shape[1]
        key = torch.arange(live, device=x.device)
        mask = ((key <= slots[..., None]) & self.on[:, None, :live] | (key == slots[..., None]))[:, None]
        at, table = (torch.arange(len(x), device=x.device)[:, None], slots), self.net.table[slots].to(x.dtype)
        for layer, (keys, values) in zip(self.net.layers, self.cache, strict=True):
            x = layer(x, table, mask, lambda k, v, keys=keys, values=values: write(keys, values, at, k, v, live))
        return self.net.norm(x)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return torch.where(
            (positions < 0)[..., None], self.last[:, None], self.net.tok_embeddings(tokens.clamp(0, self.vocab - 1))
        )

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [R, S] -> logits [R, S, V] of the tokens that follow; keys and values are written at `positions`."""
        self._leave(positions)
        B, tokens, positions = len(tokens), tokens[self.going], positions[self.going]
        slots = positions + self.net.config.prefix
        self._see(torch.arange(len(slots), device=slots.device)[:, None], slots)
        hidden = self._forward(self._embed(tokens, positions), slots)
        if self.features is not None:
            self.features[self.going[:, None], positions + 1] = hidden
        return at_rows(self.net.output(hidden), self.going, B)

    def _leave(self, positions: Tensor) -> None:
        """Rows [R] of positions [R, S] that are done leave the cache."""
        left = None if self.returns else staying(self.going, positions, self.length)
        if left is not None:
            held = [self.going, self.on, self.last, *(x for layer in self.cache for x in layer)]
            self.going, self.on, self.last, *cache = (close_up(x, left) for x in held)
            self.cache = list(zip(cache[::2], cache[1::2], strict=True))

    def _see(self, rows: Tensor, slots: Tensor) -> None:
        """Image slots that are written are attended from now on; of the prefix the caption's mask decides."""
        self.on[rows, slots] |= slots >= self.net.config.prefix

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; a node's keys and values lie beside the cache until `keep`."""
        self._leave(positions)
        B, tokens, positions, parents = len(tokens), tokens[self.going], positions[self.going], parents[self.going]
        slots = (positions + self.net.config.prefix).clamp(max=self.on.shape[1] - 1)
        above = ancestors(parents)
        root = (slots[:, None] * (above & (parents < 0)[:, None])).sum(-1)  # [R, S] slot of each node's first ancestor
        live = int(slots[:, 0].max()) + 1 if tokens.device.type == "cpu" else self.on.shape[1]
        seen = (torch.arange(live, device=tokens.device) < root[..., None]) & self.on[:, None, :live]
        mask, table = torch.cat([seen, above], -1)[:, None], self.net.table[slots]
        x = self._embed(tokens, positions)
        self.beside, self.slots = [], slots

        def attended(k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.beside.append((k, v))
            return torch.cat([keys[:, :live], k], 1), torch.cat([values[:, :live], v], 1)

        for layer, (keys, values) in zip(self.net.layers, self.cache, strict=True):
            x = layer(x, table.to(x.dtype), mask, lambda k, v, keys=keys, values=values: attended(k, v, keys, values))
        self.hidden = self.net.norm(x)
        return at_rows(self.net.output(self.hidden), self.going, B)

    @torch.inference_mode()
    def keep(self, nodes: Tensor) -> None:
        """nodes [R, W], -1 for none: their keys and values go where their positions are."""
        nodes = nodes[self.going]
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        to = self.slots[row, node]
        self._see(row, to)
        for (keys, values), (k, v) in zip(self.cache, self.beside, strict=True):
            keys[row, to], values[row, to] = k[row, node], v[row, node]
        if self.features is not None:
            self.features[self.going[row], to - self.net.config.prefix + 1] = self.hidden[row, node]


def staying(going: Tensor, positions: Tensor, length: int) -> Tensor | None:
    """Which of the rows `going` [G] have something to decode at positions [R, S]: bool [G], or None if none of them leaves.

    A row leaves when every position it is given is the last or past it, and another's is not. Only on a CPU, where asking costs nothing.
    """
    if positions.device.type != "cpu":
        return None
    more = (positions < length - 1).any(1)
    left = more[going]
    if int(left.sum()) < int(more.sum()):
        raise ValueError("a row goes on that was done in an earlier pass")
    return left if 0 < int(left.sum()) < len(going) else None


def close_up(x: Tensor, left: Tensor) -> Tensor:
    """The rows of x [G, ...] that are `left` [G] bool, in any order: the last of them move where others were, nothing else is copied."""
    n = int(left.sum())
    x[(~left[:n]).nonzero()[:, 0]] = x[n + left[n:].nonzero()[:, 0]]
    return x[:n]


def at_rows(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """x [G, ...] of `rows` [G] as [count, ...]; the others are zero."""
    return x if len(rows) == count else x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


def write(
    keys: Tensor, values: Tensor, at: tuple[Tensor, Tensor], k: Tensor, v: Tensor, live: int
) -> tuple[Tensor, Tensor]:
    """Put new keys and values in their slots of the cache [R, T, H, D]. What lies beyond a row's position is stale, masked, and
    overwritten in time."""
    keys[at], values[at] = k, v
    return keys[:, :live], values[:, :live]


def left_pad(embeddings: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded encoder output [B, T, D] and mask [B, T] to the left-padded form LlamaGen was trained on; padding is zeroed."""
    T = valid.shape[1]
    order = (torch.arange(T, device=valid.device)[None] + valid.sum(1, keepdim=True)) % T
    embeddings = (embeddings * valid[..., None]).gather(1, order[..., None].expand_as(embeddings))
    return embeddings, valid.gather(1, order)


def read_config(file: Path) -> dict:
    """The configuration in a safetensors header."""
    with safe_open(file, "pt") as f:
        return json.loads((f.metadata() or {}).get("config", "{}"))
