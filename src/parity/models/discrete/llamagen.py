"""LlamaGen (Sun et al. 2024), the family: a causal transformer over image tokens after a caption (or class) prefix,
and its drafters.

Source: the released `t2i_XL_stage{1,2}_*.pt` and `c2i_*.pt`, whose parameter names and shapes these are, `vq_ds16_*.pt`
and Flan-T5-XL's encoder. The embedded model is the same with other sizes, which the headers of its files say. Facts
that a re-implementation must get right:

- the 2-D rotary tables are zero (cosine and sine) at prefix positions, so queries and keys there are zero vectors;
- caption embeddings are left-padded; padded keys are masked, with the diagonal kept on;
- the unconditional branch replaces the caption before its projection and keeps the caption's mask.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.engine import Network, Output
from parity_decoders.protocols.discrete import Encoder
from parity_decoders.speculators import DrafterContext, DrafterNet, FeatureDrafter, FeedForward, Heads
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json, header, read_config_as
from parity.base.headers import derive_sizes
from parity.base.weights import check_fit, load_built, read_shapes, skip_filling, tensors
from parity.experiment.schema import ModelSpec
from parity.models.discrete import vq
from parity.models.discrete.prompts import (
    Canvas,
    Conditioned,
    Prompts,
    compute_features,
    condition_networks,
    make_network,
)
from parity.models.discrete.t5 import read_encoder

FAMILY: dict[str, Any] = {  # see models.discrete
    "files": ("transformer", "vq", "text"),
    "also": ("clip", "drafter", "draft", "heads"),
    "trained": ("heads", "draft", "drafter"),
    "embedded": {"vq": "vq", "text": "t5", "transformer": "llamagen", "clip": "clip"},
    "network": {"vocab": 16384, "grid": 16},
    "sizes": {  # a configuration may give these fields of LlamaGenConfig; defaults are XL's for captions at 256 pixels
        "vocab": 16384, "dim": 1280, "layers": 36, "heads": 20, "grid": 16, "prefix": 120, "caption_dim": 2048,
        "classes": 0, "multiple_of": 256, "rope_base": 10000.0, "eps": 1e-5,
    },
    "divides": {"heads": "dim"},
    "sampling": {"guidance": 7.5, "top_k": 1000},
    "papers": {"LlamaGen-XL stage 1": {}},
}  # fmt: skip
TENSORS = {  # a published file that has these tensors is this component
    "transformer": ("tok_embeddings.weight", "layers.0.attention.wqkv.weight"),
    "vq": ("quantize.embedding.weight", "post_quant_conv.weight"),
    "drafter": ("layers.0.self_attn.q_proj.weight", "fc.weight", "embed_tokens.weight"),
    "text": ("encoder.block.0.layer.0.SelfAttention.q.weight",),
}
# this says which axis of which tensor has a size, see base.headers.derive_sizes
SHAPES: dict[str, dict[str, tuple[str, int | None, int]]] = {
    "transformer": {
        "vocab": ("tok_embeddings.weight", 0, 0),
        "dim": ("tok_embeddings.weight", 1, 0),
        "layers": ("layers.", None, 0),
        "prefix": ("cls_embedding.uncond_embedding", 0, 0),
        "caption_dim": ("cls_embedding.uncond_embedding", 1, 0),
        "classes": ("cls_embedding.embedding_table.weight", 0, -1),  # one entry of the table stands for no class
    },
    "vq": {"vocab": ("quantize.embedding.weight", 0, 0)},
    "text": {"caption_dim": ("shared.weight", 1, 0)},
}
COMPUTED = ("freqs_cis",)  # this tensor of a file is ignored, because it is computed here
HEADS = {3200: 32, 4096: 32}  # the models of 3B and 7B have 32 heads; the heads of smaller ones are 64 wide


@dataclass(frozen=True)
class LlamaGenConfig:
    vocab: int = 16384
    dim: int = 1280
    layers: int = 36
    heads: int = 20
    grid: int = 16  # an image has this many tokens a side
    prefix: int = 120  # a caption takes this many positions, a class takes 1
    caption_dim: int = 2048  # the text encoder has this width; 0 means a class-conditional model
    classes: int = 0
    multiple_of: int = 256
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def hidden(self) -> int:
        width = int(2 * 4 * self.dim / 3)
        return -(-width // self.multiple_of) * self.multiple_of


def make_rotary_table(c: LlamaGenConfig) -> Tensor:
    """Compute cosines and sines [prefix + grid^2, head_dim / 2, 2]: half of the pairs turn with the row, half with the
    column. They are 0 in the prefix."""
    half = c.dim // c.heads // 2
    frequency = 1 / c.rope_base ** (torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(c.grid).float(), frequency)  # [grid, half / 2]
    angles = torch.cat([angle[:, None].expand(-1, c.grid, -1), angle[None].expand(c.grid, -1, -1)], -1).flatten(0, 1)
    image = torch.stack([angles.cos(), angles.sin()], -1)
    return torch.cat([torch.zeros(c.prefix, *image.shape[1:]), image])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate x [R, S, H, D] in interleaved pairs by table [R or 1, S, D / 2, 2]."""
    cos, sin = table[:, :, None].unbind(-1)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Rotary(nn.Module):
    """The rotary table by position."""

    table: Tensor

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.register_buffer("table", make_rotary_table(c), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Look up the table of position_ids [R, S] in the dtype of x: [R, S, D / 2, 2]."""
        return self.table[position_ids].to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c: LlamaGenConfig, number: int):
        super().__init__()
        self.heads, self.number = c.heads, number
        self.wqkv, self.wo = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Attend from x [R, S, dim] by mask [R, 1, S, T] to itself or, with a cache, to what that holds."""
        h = self.heads
        qkv = self.wqkv(x).unflatten(-1, (3 * h, -1))
        rotated = rotate(qkv[:, :, : 2 * h], table)
        q, k, v = (x.transpose(1, 2) for x in (rotated[:, :, :h], rotated[:, :, h:], qkv[:, :, 2 * h :]))
        if cache is not None:
            k, v = cache.update(k, v, self.number)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block, normalised before attention and MLP, called as transformers calls its layers."""

    def __init__(self, c: LlamaGenConfig, number: int = 0):
        super().__init__()
        self.attention = Attention(c, number)
        self.feed_forward = FeedForward(c)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c.dim, c.eps), nn.RMSNorm(c.dim, c.eps)

    def forward(
        self, x: Tensor, attention_mask: Tensor, position_embeddings: Tensor, past_key_values: Any = None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), position_embeddings, attention_mask, past_key_values)
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
        """Embed caption [R, prefix, caption_dim]; rows in `dropped` [R] bool become unconditional."""
        caption = torch.where(dropped[:, None, None], self.uncond_embedding, caption)
        return self.cap_proj(caption)


class ClassEmbedder(nn.Module):
    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.classes = c.classes
        self.embedding_table = nn.Embedding(c.classes + 1, c.dim)

    def forward(self, label: Tensor, dropped: Tensor) -> Tensor:
        """Embed label [R]; rows in `dropped` [R] bool take the last entry, the unconditional class."""
        return self.embedding_table(torch.where(dropped, self.classes, label))[:, None]


class Transformer(nn.Module):
    """The network, called as transformers calls a causal model."""

    def __init__(self, c: LlamaGenConfig):
        super().__init__()
        self.config = c
        self.cls_embedding = CaptionEmbedder(c) if c.caption_dim else ClassEmbedder(c)
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c, i) for i in range(c.layers))
        self.norm = nn.RMSNorm(c.dim, c.eps)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        self.rotary = Rotary(c)

    @property
    def width(self) -> int:
        return self.config.dim

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
    ) -> Output:
        """Compute logits and hidden states of inputs_embeds [R, S, dim] at position_ids [R, S]: in the prefix and after
        it. See `engine`; logits_to_keep: of that many last positions alone, 0 for all."""
        x = inputs_embeds
        table = self.rotary(x, position_ids)
        for layer in self.layers:
            x = layer(x, attention_mask, table, past_key_values)
        hidden = self.norm(x)
        return Output(self.output(hidden[:, -logits_to_keep:]), hidden)

    def features(self, condition: Tensor, valid: Tensor, dropped: Tensor, tokens: Tensor) -> Tensor:
        """Compute hidden states [B, n + 1, dim] of positions 0..n given tokens [B, n], which `output` makes logits.
        condition: captions' embeddings [B, prefix, D], or classes [B]; valid [B, prefix]: their mask; dropped [B] bool:
        rows without a caption."""
        prefix = self.cls_embedding(condition, dropped)
        padding = torch.zeros(1, dtype=torch.int64, device=prefix.device)
        return compute_features(self, Prompts(prefix, valid, padding, self.tok_embeddings.weight), tokens)


class CaptionedDrafter(DrafterNet):
    """As released for LlamaGen (LANTERN, Jang et al. 2024, and VVS): its own embeddings of tokens, a bias, no norm
    before attention and none at the end. It reads the caption first, a place for each of its positions but the last,
    where token 0 stands for words; the released code masks no padding there."""

    def __init__(self, c: LlamaGenConfig):
        """Build one layer, without its first norm, for a target of these sizes."""
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.dim)
        self.fc = nn.Linear(2 * c.dim, c.dim)
        self.layer = Block(c)
        self.rotary = Rotary(c)
        self.norm = nn.Identity()
        self.layer.register_module("attention_norm", nn.Identity())

    def make_context(self, target: Network, ids: Tensor | None = None) -> DrafterContext:
        """Make the caption's context: the target's features at all its positions but the last, each with token 0."""
        states = target.last[:, :0] if target.states is None else target.states
        words = self.tokens.weight[:1].expand(*states.shape[:2], -1)
        on = torch.ones_like(words[..., 0], dtype=torch.bool)
        n_before = target.model.config.prefix - words.shape[1]
        return DrafterContext(self.tokens.weight, words, states, on, target.padding - n_before)


NAMES = {  # a released drafter's tensors get these names; its q, k and v are joined to one matrix
    "embed_tokens.": "tokens.", "fc.": "fc.", "layers.0.self_attn.o_proj.": "layer.attention.wo.",
    "layers.0.mlp.gate_proj.": "layer.feed_forward.w1.", "layers.0.mlp.up_proj.": "layer.feed_forward.w3.",
    "layers.0.mlp.down_proj.": "layer.feed_forward.w2.", "layers.0.post_attention_layernorm.": "layer.ffn_norm.",
}  # fmt: skip


def read_published(component: str, path: Path, spec: ModelSpec) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read tensors and sizes of a drafter released under other names (EAGLE-1, LANTERN: a folder with config.json, or
    its file of weights), or of a smaller published transformer as draft model. None for a file that is read as it is.
    Raises ParityError for another target's."""
    if component == "draft" and not header(path):
        state = {name: tensor for name, tensor in tensors(path, dtype=None) if name not in COMPUTED}
        grid = LlamaGenConfig(**spec.network).grid  # type: ignore[arg-type]
        return state, asdict(LlamaGenConfig(**read_sizes({k: tuple(v.shape) for k, v in state.items()}, grid)))
    if component != "drafter" or TENSORS["drafter"][0] not in read_shapes(path):
        return None
    file = (path if path.is_dir() else path.parent) / "config.json"
    record = foreign_json(file) if file.is_file() else {}
    target = LlamaGenConfig(**spec.network)  # type: ignore[arg-type]
    if (heads := int(record.get("num_attention_heads", target.heads))) != target.heads:
        raise ParityError(
            f"{path}: a drafter of another target: heads {heads}; allowed: {target.heads}, as the target's"
        )
    c = replace(target, layers=1, eps=float(record.get("rms_norm_eps", 1e-6)))
    stored = {name: tensor for name, tensor in tensors(path, dtype=None) if "rotary_emb" not in name}
    qkv = [stored.pop(f"layers.0.self_attn.{letter}_proj.weight", torch.empty(0)) for letter in "qkv"]
    state = {"layer.attention.wqkv.weight": torch.cat(qkv)}
    for name, tensor in stored.items():
        old = next((prefix for prefix in NAMES if name.startswith(prefix)), "")
        state[NAMES.get(old, "") + name.removeprefix(old)] = tensor
    with skip_filling():
        check_fit(CaptionedDrafter(c), state, path)
    return state, asdict(c) | {"target": spec.sha256["transformer"]}  # the drafter's file does not record its target


def sizes(manifest: Mapping[str, Any]) -> LlamaGenConfig:
    """Read the sizes of the transformer that a manifest names."""
    if manifest["source"] != "embedded":
        return LlamaGenConfig(**manifest["network"])
    return read_config_as(LlamaGenConfig, Path(manifest["files"]["transformer"]))


def shape(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Compute the tokens in a row of an image, and the pixels of its side."""
    grid = sizes(manifest).grid
    return grid, grid * vq.read_config(Path(manifest["files"]["vq"])).stride


def read_sizes(shapes: Mapping[str, tuple[int, ...]], grid: int) -> dict[str, int]:
    """Read the sizes that differ from FAMILY["sizes"] from the shapes of a published transformer's tensors, which do
    not tell `grid`, tokens a side. Raises ParityError if the shapes do not belong to a LlamaGen model."""
    sizes_read = derive_sizes(shapes, SHAPES["transformer"])
    dim = sizes_read["dim"]
    sizes_read |= {"heads": HEADS.get(dim, dim // 64), "grid": grid}
    if "classes" in sizes_read:
        sizes_read |= {"prefix": 1, "caption_dim": 0}
    elif "prefix" not in sizes_read:
        raise ParityError("no cls_embedding that is known; allowed: a LlamaGen transformer, of captions or of classes")
    if shapes["layers.0.feed_forward.w1.weight"][0] != (hidden := LlamaGenConfig(dim=dim).hidden):
        width = shapes["layers.0.feed_forward.w1.weight"][0]
        raise ParityError(f"feed_forward.w1 has {width} rows; allowed: {hidden}, as published ones of width {dim}")
    return {key: value for key, value in sizes_read.items() if value != FAMILY["sizes"][key]}


def stride(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Compute the pixels a token, each way, from the shapes of a published tokenizer's tensors."""
    return vq.read_sizes(shapes).stride


def load(manifest: Mapping[str, Any], component: str, device: str, dtype: torch.dtype) -> nn.Module:
    """Load "net", "vq" or a speculator of a manifest. Raises ParityError if files do not fit together."""
    files = {component: Path(file) for component, file in manifest["files"].items()}
    config = sizes(manifest)
    tokenizer = vq.read_config(files["vq"])
    if tokenizer.codebook != config.vocab:
        raise ParityError(
            f"models: the tokenizer has {tokenizer.codebook} codes, the transformer {config.vocab};"
            " take the tokenizer the model was trained with"
        )
    if component == "vq":
        return vq.load(files["vq"], tokenizer, device).to(dtype)
    if component == "net":
        return load_built(partial(Transformer, config), files["transformer"], COMPUTED, device, dtype)
    extra = read_config_as(LlamaGenConfig, files[component], ignored=("target",))
    if component == "drafter":  # its positions are the target's
        extra = replace(extra, prefix=config.prefix, grid=config.grid, rope_base=config.rope_base)
    is_captioned = component == "drafter" and "fc.bias" in read_shapes(files[component])
    build = CaptionedDrafter if is_captioned else partial(make_speculator, component)
    return load_built(partial(build, extra), files[component], (), device, dtype)


def make_speculator(component: str, c: LlamaGenConfig) -> nn.Module:
    """Build "heads" or a "drafter" for a target of these sizes, or a "draft" model of these sizes."""
    if component == "drafter":
        return FeatureDrafter(c, Block(c), Rotary(c))
    return Heads(c) if component == "heads" else Transformer(c)


def embed_prompts(net: Transformer, inputs: Mapping[str, Tensor], guided: bool) -> Prompts:
    """Embed a batch's "embeddings" [B, prefix, caption_dim], left-padded, with their mask "valid", or classes "label"
    [B]; with unconditional rows, which keep the caption's mask, if `guided`."""
    if "label" in inputs:
        condition = inputs["label"]
        valid = torch.ones_like(condition)[:, None]
    else:
        condition = inputs["embeddings"].to(net.output.weight.dtype)
        valid = inputs["valid"]
    return embed_conditions(net, condition, valid, guided)


def embed_conditions(net: Transformer, condition: Tensor, valid: Tensor, guided: bool) -> Prompts:
    """Embed conditions [B, prefix, caption_dim] with their mask [B, prefix], or labels [B]; see `embed_prompts`."""
    dropped = torch.zeros(len(condition), dtype=torch.bool, device=condition.device)
    if guided:
        condition, valid = torch.cat([condition] * 2), torch.cat([valid] * 2)
        dropped = torch.cat([dropped, ~dropped])
    padding = torch.zeros(len(condition), dtype=torch.int64, device=condition.device)
    return Prompts(net.cls_embedding(condition, dropped), valid, padding, net.tok_embeddings.weight)


def condition(nets: dict[str, Any], inputs: dict[str, Tensor], guided: bool, run: Any = None) -> Conditioned:
    """Make the networks of a batch (`embed_prompts`). run: the target, compiled."""
    codes = nets["vq"].quantize
    canvas = make_canvas(nets["net"], (codes.codes, codes.embedding.weight))
    return condition_networks(nets, partial(embed_prompts, inputs=inputs, guided=guided), canvas, run)


def make_canvas(net: Transformer, codebooks: tuple[Tensor, Tensor]) -> Canvas:
    """Describe the images: no token is forced."""
    return Canvas(torch.full((net.config.grid**2,), -1, device=codebooks[0].device), net.config.grid, codebooks)


def LlamaGen(net: Transformer, condition: Tensor, valid: Tensor, guided: bool) -> Network:  # noqa: N802
    """Make the network of conditions [B, prefix, caption_dim] with their mask [B, prefix], or labels [B]; with
    unconditional rows if `guided`. The codebook is its own embedding of tokens."""
    codes = net.tok_embeddings.weight.detach()
    canvas = make_canvas(net, (F.normalize(codes, dim=-1), codes))
    return make_network(net, embed_conditions(net, condition, valid, guided), canvas)


def images(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """Decode tokens [n, L] of whole images to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(tokens)


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Find groups of codes that look alike: bool [G, V], for each group its codes."""
    return vq.mark_above_median(nets["vq"].quantize.codes)


def read_labels(captions: list[str], classes: int) -> dict[str, Tensor]:
    """Read class numbers from texts: label [B]. Raises ParityError for a text that is no number below `classes`."""
    for caption in captions:
        if not caption.isdecimal() or int(caption) >= classes:
            raise ParityError(f"caption: {caption[:60]!r}: allowed: the number of a class, 0 to {classes - 1}")
    return {"label": torch.tensor([int(caption) for caption in captions])}


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Make the function that encodes captions for `condition`, or class numbers for a class-conditional model."""
    if classes := sizes(manifest).classes:
        return partial(read_labels, classes=classes)
    return read_encoder(Path(manifest["files"]["text"]), sizes(manifest).prefix, device)
