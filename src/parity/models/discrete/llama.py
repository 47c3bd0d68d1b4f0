"""What families that are language models too share: their network, their folders, prompts and image codes.

**Network**: a causal transformer as Llama (Touvron et al. 2023, sec. 2.2). Rotary embedding in one dimension, in
transformers' layout (a head's first half turns with its second), grouped queries, RMSNorm, SwiGLU; Chameleon's has
LayerNorms of queries and keys, too. Parameter names and numbers are transformers', so its files are read as they are;
the forward is ours, since a window's rows stand at different positions and a tree's nodes see their branch alone. Facts
that a re-implementation must get right:

- cosines and sines are float32, rounded to the network's dtype once;
- what RMSNorm has normalised is rounded to the dtype before its weight multiplies it;
- Chameleon's norms of queries and keys have statistics of a head, at an epsilon of 1e-5 whatever the configuration
  says, and a weight and a bias for each head (Chameleon, sec. 2.2, for the reason; transformers for the layout).

**Folders** in transformers' layout: nothing of a folder is executed. Its configuration is read by transformers' class
of that name, its tokenizer by the tokenizers library, its weights as tensors.

**Tokens** are the codes of the image tokenizer, 0 to C - 1, then the few tokens that the grammar forces.

**Prompts**: an encoder gives each caption's ids `words` [P] and those of its unconditional row `negative` [Q], left
padded, and what of them is attended, `valid` and `negative_valid`. A row's first word stands at position 0.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.base.weights import assign, check_fit, shapes, tensors, unfilled
from parity.models.compiling import compiled
from parity.models.discrete.cached import Cached, EagleDrafter, Remember, a_pass
from parity.models.discrete.protocol import Encoder
from parity.models.discrete.vq import above_median

if TYPE_CHECKING:
    from tokenizers import Tokenizer

N = TypeVar("N", bound=nn.Module)
Rename = Callable[[str], str | None]  # a tensor's name in a file to that in the network, None: not wanted
Sizes = Mapping[str, int]  # codes, rows and columns of a picture, and how many tokens end a row and a picture
MOST = 1024  # ids of a caption; the longest of PartiPrompts, COCO and GenEval have 200
STEP = 16  # prompts of a batch are padded to a multiple of it: so few shapes are compiled
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


# Folders


def read_object(file: Path) -> dict[str, Any]:
    """An object of JSON; ParityError for a file that is not there, or holds none."""
    try:
        record = foreign_json(file)
    except OSError:
        raise ParityError(f"{file}: no such file; allowed: a folder as transformers saves it") from None
    if not isinstance(record, dict):
        raise ParityError(f"{file}: allowed: an object, {{...}}")
    return record


def read_config(folder: Path, kind: str, name: str) -> Any:
    """A folder's configuration as transformers' class `name`, which knows what the file leaves out. ParityError unless
    its model_type is `kind` and every value is one that the class takes."""
    import transformers

    record = read_object(folder / "config.json")
    if record.get("model_type") != kind:
        model_type = str(record.get("model_type"))[:60]
        raise ParityError(f"{folder}: a folder of model_type {model_type!r}; allowed here: {kind!r}")
    try:
        return getattr(transformers, name).from_dict(record)
    except Exception as error:  # its checks raise several families
        cause = " ".join(str(error).split())[:200]
        raise ParityError(f"{folder / 'config.json'}: not a configuration of {kind}: {cause}") from None


def llama_config(c: Any, folder: Path, normed: bool = False) -> LlamaConfig:
    """Sizes of the network of a language model's configuration; ParityError for what `Llama` does not compute."""
    rope = c.rope_parameters or {}
    odd = [key for key in ("attention_bias", "mlp_bias", "swin_norm") if getattr(c, key, None)]
    odd += [f"rope_type {rope['rope_type']!r}"] if rope.get("rope_type", "default") != "default" else []
    odd += [f"hidden_act {c.hidden_act!r}"] if c.hidden_act != "silu" else []
    heads, width = c.num_attention_heads, c.hidden_size
    kept = c.num_key_value_heads or heads
    odd += [f"{heads} heads of width {width}"] if width % heads or heads % kept else []
    if odd:
        raise ParityError(f"{folder / 'config.json'}: {odd[0]}: not built; allowed: networks without")
    head = getattr(c, "head_dim", None) or width // heads
    return LlamaConfig(
        c.vocab_size, width, c.num_hidden_layers, heads, kept, head, c.intermediate_size,
        c.max_position_embeddings, float(rope.get("rope_theta", 10000.0)), c.rms_norm_eps, normed,
    )  # fmt: skip


def read_tokenizer(folder: Path) -> "Tokenizer":
    """A folder's tokenizer; ParityError for a file that holds none."""
    from tokenizers import Tokenizer

    read_object(file := folder / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise ParityError(f"{file}: not a tokenizer: {str(error).splitlines()[0][:160]}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def ids_of(names: Iterable[str], vocabulary: Mapping[str, int], folder: Path) -> dict[str, int]:
    """Ids of tokens by name; ParityError for the first that a vocabulary lacks."""
    ids = {}
    for name in names:
        if name not in vocabulary:
            raise ParityError(f"{folder}: the tokenizer has no {name!r}; allowed: that of the model's own repository")
        ids[name] = vocabulary[name]
    return ids


def stripped(name: str, prefixes: Iterable[str]) -> str | None:
    """A tensor's name without the first of the prefixes that matches; None if none matches."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), None)


def fill(
    build: Callable[[], N],
    path: Path,
    rename: Rename,
    device: str,
    dtype: torch.dtype,
    rows: Mapping[str, Tensor] | None = None,
    adapt: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> N:
    """A network with its weights, one tensor at a time, on its device and in its dtype; ParityError unless all fit.
    By the network's names: the rows of a tensor that it has, and how a tensor of a file is adapted to it."""
    with unfilled():
        net = build()
    stored, rows = shapes(path), rows or {}
    names = {name: own for name in stored if (own := rename(name)) is not None}
    whole = {own: adapt(own, stored[name]) for name, own in names.items()}
    check_fit(net, {own: entry[: len(rows[own])] if own in rows else entry for own, entry in whole.items()}, path)
    for name, tensor in tensors(path, device, dtype, stored.keys() - names.keys()):
        own = names[name]
        part = tensor[rows[own].to(tensor.device)] if own in rows else tensor
        assign(net, own, adapt(own, part), path)
    return net.to(device, dtype).eval()


def load_network(
    c: LlamaConfig,
    folder: Path,
    ids: list[int],
    codes: int,
    rename: Rename,
    device: str,
    dtype: torch.dtype,
    adapt: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> Llama:
    """The transformer of a folder, its output matrix that of the codes alone; ids, codes: see `Codes`."""
    if max(ids) >= c.vocab:
        raise ParityError(f"{folder}: the tokenizer has more tokens than the network's {c.vocab}")
    chosen = torch.tensor(ids)
    build = lambda: Llama(c, Codes(c.dim, chosen, codes))  # noqa: E731
    return fill(build, folder, rename, device, dtype, {"output.chosen.weight": chosen[:codes]}, adapt)


def with_sizes(vq: Any, s: Sizes) -> nn.Module:
    """An image tokenizer that knows the sizes of a model's pictures; ParityError for one of another number of codes."""
    if (codes := len(vq.quantize.embedding.weight)) != s["vocab"]:
        raise ParityError(f"models: the image tokenizer has {codes} codes, the model {s['vocab']}")
    vq.size = s
    return vq


# Pictures: how a family of these conditions its network, and decodes its tokens


def sizes_of(family: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of a model's pictures, as its manifest says or its family declares them."""
    return {**family["network"], **manifest["network"]}


def shape_of(family: Mapping[str, Any], stride: int, manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a row of a picture; pixels of its longer side, `stride` a code."""
    s = sizes_of(family, manifest)
    return s["columns"] + s.get("line", 0), stride * max(s["rows"], s["columns"])


def grammar(s: Sizes) -> Tensor:
    """Forced tokens [L] of a picture, -1 for a code: `line` tokens behind each row, then `end` more."""
    line = list(range(s["vocab"], s["vocab"] + s.get("line", 0)))
    end = range(s["vocab"] + len(line), s["vocab"] + len(line) + s.get("end", 0))
    row = torch.tensor([-1] * s["columns"] + line)
    return torch.cat([row.repeat(s["rows"]), torch.tensor(end, dtype=torch.int64)])


def codes_of(tokens: Tensor, s: Sizes) -> Tensor:
    """The codes [n, rows, columns] of whole pictures' tokens [n, L]: what the grammar forces is left off."""
    rows, columns, line = s["rows"], s["columns"], s.get("line", 0)
    return tokens[:, : rows * (columns + line)].unflatten(1, (rows, columns + line))[:, :, :columns]


def pad_codes(vectors: Tensor, tokens: int) -> Tensor:
    """Vectors [C, D] of codes as vectors [tokens, D]: what is no code is far from all of them."""
    far = 10 * vectors.abs().max()
    return torch.cat([vectors, far.expand(tokens - len(vectors), vectors.shape[1])])


def condition(nets: dict[str, Any], inputs: Mapping[str, Tensor], guided: bool, fast: bool = False) -> Cached:
    """The token model of a batch of encoded captions. fast: its passes are compiled."""
    net, vq = nets["net"], nets["vq"]
    s, codes = vq.size, vq.quantize.embedding.weight
    ids, valid = batch_ids(inputs, guided)
    forced = grammar(s).to(ids.device)
    if (length := ids.shape[1] + len(forced)) > net.config.places:
        most = f"at most {net.config.places}, max_position_embeddings"
        raise ParityError(f"prompt and picture: {length} positions; allowed: {most}")
    words, width = net.embed_tokens.weight, s["columns"] + s.get("line", 0)
    embeddings, shift = net.output.embeddings(words), ids.shape[1] - valid.sum(1)
    read = compiled(a_pass, ids.device.type) if fast else None
    model = Cached(net, F.embedding(ids, words), valid, embeddings, forced, width, shift, read=read)
    model.raw_codebook = pad_codes(codes, model.vocab)
    model.codebook = pad_codes(F.normalize(codes, dim=-1), model.vocab)
    if "drafter" in nets:
        model.drafter = EagleDrafter(nets["drafter"], model, ids)
    return model


def pictures(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """tokens [n, L] of whole pictures to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(codes_of(tokens, nets["vq"].size))


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Indicators bool [G, V] of codes that look alike."""
    s = nets["vq"].size
    alike = above_median(nets["vq"].quantize.embedding.weight)
    return np.pad(alike, ((0, 0), (0, s.get("line", 0) + s.get("end", 0))))


# Prompts


def left_padded(rows: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Ids [B, length] int64 and which of them are a row's own, [B, length] int64."""
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    valid = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, length - len(row) :], valid[i, length - len(row) :] = torch.tensor(row), 1
    return ids, valid


def caption_ids(words: "Tokenizer", captions: list[str], reserved: frozenset[int], where: Path) -> list[list[int]]:
    """Ids of texts, cut at MOST, and how many were cut printed. ParityError for one that holds a token of the
    grammar, or characters that the tokenizer has no token for."""
    result = []
    for caption in captions:
        try:
            coded = words.encode(caption, add_special_tokens=False)
        except Exception as error:  # surrogates, which no UTF-8 has
            cause = str(error).splitlines()[0][:80]
            raise ParityError(f"caption {caption[:60]!a}: {where} cannot hold it: {cause}") from None
        if any(i in reserved for i in coded.ids):
            token = next(t for i, t in zip(coded.ids, coded.tokens, strict=True) if i in reserved)
            raise ParityError(f"caption {caption[:60]!r}: holds {token!r}, a token of pictures; allowed: words")
        if caption.strip() and not coded.ids:
            raise ParityError(f"caption {caption[:60]!r}: {where} has no token for any of it; allowed: words it knows")
        result.append(coded.ids)
    if cut := sum(len(ids) > MOST for ids in result):
        print(f"captions: {cut} of {len(captions)} are longer than {MOST} tokens and are cut there", file=sys.stderr)
    return [ids[:MOST] for ids in result]


def prompt_encoder(
    words: "Tokenizer",
    reserved: frozenset[int],
    where: Path,
    template: str,
    around: tuple[list[int], list[int]],
    negative: Callable[[list[int]], list[int]],
) -> Encoder:
    """Captions to what `condition` reads. template: a text with {}, where the caption stands; around: ids before and
    behind it; negative(prompt's ids) -> those of its unconditional row."""
    before, behind = around

    def encoded(captions: list[str]) -> dict[str, Tensor]:
        texts = [template.replace("{}", caption) for caption in captions]
        rows = [before + ids + behind for ids in caption_ids(words, texts, reserved, where)]
        length = len(before) + MOST + len(behind)
        ids, valid = left_padded(rows, length)
        others, other_valid = left_padded([negative(row) for row in rows], length)
        return {"words": ids, "valid": valid, "negative": others, "negative_valid": other_valid}

    return encoded


def batch_ids(inputs: Mapping[str, Tensor], guided: bool) -> tuple[Tensor, Tensor]:
    """The rows' ids and what is attended of them [R, P]: B conditional, then B unconditional if guided; the padding
    that all of them have left off."""
    rows = [(inputs["words"], inputs["valid"])]
    rows += [(inputs["negative"], inputs["negative_valid"])] if guided else []
    widest = max(int(valid.sum(1).max()) for _, valid in rows)
    length = min(-(-widest // STEP) * STEP, max(ids.shape[1] for ids, _ in rows))
    ends = [tuple(F.pad(x, (length - x.shape[1], 0)) for x in row) for row in rows]
    return torch.cat([ids for ids, _ in ends]), torch.cat([valid for _, valid in ends])
