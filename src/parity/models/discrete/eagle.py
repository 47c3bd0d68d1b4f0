"""EAGLE's drafter: one layer that continues the target's features (Li et al. 2024, sec. 4.1); those of LlamaGen."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import tensors
from parity.models.discrete.cached import Cached, at_rows, begin_again, close_up, staying
from parity.models.discrete.transformer import Block, LlamaGenConfig, Remember, RMSNorm
from parity.models.discrete.trees import ancestors


class Seen(NamedTuple):
    """What a drafter reads of a batch: the caption first, if it reads that at all, a slot for each of its positions but
    the last."""

    embeddings: Tensor  # [V, dim] of the picture's tokens
    words: Tensor  # [R, before, dim] embeddings of the caption's tokens, each beside the feature that predicted it
    told: Tensor  # [R, before, dim] those features
    on: Tensor  # [R, before] bool: slots that are attended
    table: Tensor  # [places, .., 2] the rotary table, from the first slot's place on
    shift: Tensor | None = None  # [R] how many places a row's slots stand before those of the table


class Layer(Protocol):
    """One layer that drafts: embeddings of tokens and the features that predicted them to the next features; all
    [B, S, dim]."""

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor: ...

    def sees(self, target: Cached, ids: Tensor | None = None) -> Seen:
        """What it reads of a batch; ids [R, P] of the prompts, where they are words."""
        ...


class FeatureDrafter(nn.Module):
    """A token's embedding and the feature that predicted it to the feature that predicts the next; all [B, S, dim]."""

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.fc, self.layer, self.norm = nn.Linear(2 * c.dim, c.dim, bias=False), Block(c), RMSNorm(c.dim, c.eps)

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor:
        return self.norm(self.layer(self.fc(torch.cat([embeddings, features], -1)), table, mask, remember))

    def sees(self, target: Cached, ids: Tensor | None = None) -> Seen:
        """The picture alone, by the target's own embeddings."""
        none = target.told[:, :0]
        return Seen(target.embeddings, none, none, none.any(-1), target.net.table[target.net.config.prefix :])


class CaptionedDrafter(nn.Module):
    """The same as released for LlamaGen (LANTERN, Jang et al. 2024, and VVS): its own embeddings of tokens, a bias, no
    norm before attention and none at the end; and it reads the caption first, a place for each of its positions but the
    last, where token 0 stands for words.

    The released code masks no padding of the caption there.
    """

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.tokens, self.fc, self.layer = nn.Embedding(c.vocab, c.dim), nn.Linear(2 * c.dim, c.dim), Block(c)
        self.layer.register_module("attention_norm", nn.Identity())

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor:
        return self.layer(self.fc(torch.cat([embeddings, features], -1)), table, mask, remember)

    def sees(self, target: Cached, ids: Tensor | None = None) -> Seen:
        """The caption, and the picture by its own embeddings."""
        words = self.tokens.weight[:1].expand(*target.told.shape[:2], -1)
        on = torch.ones_like(words[..., 0], dtype=torch.bool)
        table = target.net.table[target.net.config.prefix - words.shape[1] :]
        return Seen(self.tokens.weight, words, target.told, on, table)


class EagleDrafter:
    """A `protocol.Drafter` of a batch that is being decoded; it makes the target keep its features by position.

    Ours sees the picture alone: what it knows of the caption is in the features. A released one has `before` slots for
    the caption before those of the picture.
    """

    def __init__(self, net: Layer, target: Cached, ids: Tensor | None = None):
        """ids [R, P]: see `Layer.sees`."""
        seen, rows, at = net.sees(target, ids), len(target.last), target.last
        self.net, self.target = net, target
        self.embeddings, self.table = seen.embeddings, seen.table
        # its own: rows that are done leave it in place, as they leave the target's
        self.shift = None if seen.shift is None else seen.shift.clone()
        self.before = seen.told.shape[1]
        # at position + 1; the target writes them
        self.features = target.features = at.new_zeros(rows, target.length + 1, at.shape[-1])
        shape = (rows, self.before + target.length, *target.net.kept)
        self.keys, self.values = at.new_zeros(shape), at.new_zeros(shape)
        self.on = F.pad(seen.on, (0, target.length), value=True)  # [rows, slots] that are attended
        # rows whose pictures are not done: keys, values, on and shift hold these alone
        self.going = torch.arange(rows, device=at.device)
        if self.before:
            self._read(seen)

    @torch.inference_mode()
    def _read(self, seen: Seen) -> None:
        """The caption into the cache."""
        slots = torch.arange(n := self.before, device=seen.told.device)
        causal = slots <= slots[:, None]
        mask = (causal & seen.on[:, None] | (slots == slots[:, None]))[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[:, :n], self.values[:, :n] = k, v
            return k, v

        self.net.forward(seen.words, seen.told, self._turned(slots[None], seen.told.dtype), mask, remember)

    @torch.inference_mode()
    def join(self, rows: Tensor, fresh: "EagleDrafter") -> None:
        """See TokenModel; the target forgets their features."""
        prefixes, more = (self.before, fresh.before), fresh.before - self.before
        if more > 0:
            self.keys, self.values = (F.pad(x, (0, 0, 0, 0, more, 0)) for x in (self.keys, self.values))
        begin_again(self, fresh, rows, prefixes, *([d.keys, d.values] for d in (self, fresh)))
        self.before = max(prefixes)

    def _turned(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """The rotary table at slots [G or 1, S]."""
        places = slots if self.shift is None else (slots - self.shift[:, None]).clamp(min=0)
        return self.table[places].to(dtype)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """tokens, positions, sources [R, S] -> logits [R, S, V]; see Drafter."""
        left, B = staying(self.going, positions, self.target.length), len(tokens)
        if left is not None:
            held = (self.going, self.keys, self.values, self.on)
            self.going, self.keys, self.values, self.on = (close_up(x, left) for x in held)
            self.shift = None if self.shift is None else close_up(self.shift, left)
        tokens, positions, sources = tokens[self.going], positions[self.going], sources[self.going]
        self.rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        features = self.features[self.going[:, None], sources.clamp(min=-1) + 1]
        slots = positions + self.before
        self.live = self.on.shape[1] if self.target.static else int(slots.max()) + 1  # as in the target
        key = torch.arange(self.live, device=slots.device)
        mask = ((key <= slots[..., None]) & self.on[:, None, : self.live])[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[self.rows, slots], self.values[self.rows, slots] = k, v
            return self.keys[:, : self.live], self.values[:, : self.live]

        output = self.net.forward(
            self.embeddings[tokens], features, self._turned(slots, features.dtype), mask, remember
        )
        self.last = slots[:, -1:]
        self.shown: list[Tensor] = []  # parents of the tree's nodes, call by call
        self.predicted = output[:, -1:]  # features: of the last token written, then of the tree's nodes
        return at_rows(self.target.net.output(output), self.going, B)

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; see Drafter."""
        B, S = tokens.shape
        tokens, parents, positions = (x[self.going] for x in (tokens, parents, positions))
        at = positions.clamp(max=self.target.length - 1) + self.before
        self.shown.append(parents)
        above = ancestors(torch.cat(self.shown, 1))[:, -S:]
        key = torch.arange(self.live, device=at.device)
        written = ((key <= self.last) & self.on[:, : self.live])[:, None].expand(-1, S, -1)
        mask = torch.cat([written, above], -1)[:, None]

        end = self.live + above.shape[2]
        if end > self.keys.shape[1]:
            room = (0, 0, 0, 0, 0, self.on.shape[1] + above.shape[2] - self.keys.shape[1])
            self.keys, self.values = F.pad(self.keys, room), F.pad(self.values, room)

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[:, end - S : end], self.values[:, end - S : end] = k, v  # behind all that was written
            return self.keys[:, :end], self.values[:, :end]

        features = self.predicted[self.rows, parents + 1]
        output = self.net.forward(self.embeddings[tokens], features, self._turned(at, features.dtype), mask, remember)
        self.predicted = torch.cat([self.predicted, output], 1)
        return at_rows(self.target.net.output(output), self.going, B)


NAMES = {  # of a released drafter's tensors; its q, k and v are one matrix here
    "embed_tokens.weight": "tokens.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "layers.0.self_attn.o_proj.weight": "layer.attention.wo.weight",
    "layers.0.mlp.gate_proj.weight": "layer.feed_forward.w1.weight",
    "layers.0.mlp.up_proj.weight": "layer.feed_forward.w3.weight",
    "layers.0.mlp.down_proj.weight": "layer.feed_forward.w2.weight",
    "layers.0.post_attention_layernorm.weight": "layer.ffn_norm.weight",
}
MERGED = tuple(f"layers.0.self_attn.{part}_proj.weight" for part in "qkv")


def released(file: Path, said: Mapping[str, Any], target: LlamaGenConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A released drafter's tensors under the names here, and its sizes, for a target; ParityError where they do not
    fit. said: its config.json."""
    held = dict(tensors(file, dtype=None))
    odd = sorted(name for name in set(held) ^ {*NAMES, *MERGED} if "rotary_emb" not in name)
    if odd:
        what = "lacks" if odd[0] not in held else "has"
        raise ParityError(f"{file}: not a drafter of one layer as released for LlamaGen: {what} {odd[0]}")
    dim = held["fc.weight"].shape[0]
    c = LlamaGenConfig(**asdict(target) | {"layers": 1, "eps": float(said.get("rms_norm_eps", 1e-6))})
    sizes = {
        "width": (dim, target.dim),
        "codes": (held["embed_tokens.weight"].shape[0], target.vocab),
        "heads": (int(said.get("num_attention_heads", target.heads)), target.heads),
        "hidden width": (held["layers.0.mlp.gate_proj.weight"].shape[0], c.hidden),
    }
    for what, (own, wanted) in sizes.items():
        if own != wanted:
            raise ParityError(f"{file}: a drafter of another target: {what} {own}; allowed: {wanted}, as the target's")
    state = {name: held[theirs] for theirs, name in NAMES.items()}
    return state | {"layer.attention.wqkv.weight": torch.cat([held[name] for name in MERGED])}, asdict(c)
