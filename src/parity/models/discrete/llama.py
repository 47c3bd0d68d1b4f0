"""What families that are language models too share: their network, their folders, prompts and image codes.

**Network**: transformers' own language model of the folder, so its files are read as they are, and an output layer of
the image's tokens.

**Folders** in transformers' layout: nothing of a folder is executed. Its configuration is read by transformers' class
of that name, its tokenizer by the tokenizers library, its weights as tensors.

**Tokens** are the codes of the image tokenizer, 0 to C - 1, then the few tokens that the grammar forces.

**Prompts**: an encoder gives each caption's ids `words` [P] and those of its unconditional row `negative` [Q], left
padded, and what of them is attended, `valid` and `negative_valid`. A row's first word stands at position 0.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.engine import Output
from parity_decoders.protocols.discrete import Encoder
from parity_decoders.speculators import FeatureDrafter, Heads
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.base.weights import assign, check_fit, load_built, read_shapes, skip_filling, tensors
from parity.models.discrete.prompts import Canvas, Conditioned, Prompts, condition_networks
from parity.models.discrete.vq import mark_above_median

if TYPE_CHECKING:
    from tokenizers import Tokenizer

N = TypeVar("N", bound=nn.Module)
Rename = Callable[[str], str | None]  # maps a tensor's name in a file to that in the network, or to None, to skip it
Adapt = Callable[[str, Tensor], Tensor]  # makes of a name in the network and a file's tensor the network's tensor
Sizes = Mapping[str, int]  # "vocab" codes, "rows" and "columns" of an image, "line" and "end" tokens after them
MOST = 1024  # a caption is cut at this many ids; the longest of PartiPrompts, COCO and GenEval have 200
STEP = 16  # prompts of a batch are padded to a multiple of it, so that few shapes are compiled
NEVER = -1e30  # the logit of a token that is never chosen: finite, so that guidance may subtract two of them
# transformers' language models by model_type of their configuration; the last is Emu3.5's own
BACKBONES = {"llama": "LlamaModel", "emu3_text_model": "Emu3TextModel", "Emu3": "Qwen3Model"}
VISION = ("decoder.", "post_quant_conv.", "quantize.")  # of an image tokenizer, all but the encoder is loaded


def make_backbone(config: Any) -> Any:
    """Build transformers' language model of a configuration, from embeddings to hidden states."""
    import transformers

    config._attn_implementation = "sdpa"
    if config.model_type != "chameleon":
        return getattr(transformers, BACKBONES[config.model_type])(config)
    config.vocabulary_map = config.vocabulary_map or {}  # of images in prompts, which Lumina-mGPT's files may lack
    net = transformers.ChameleonModel(config)
    del net.vqmodel  # the image tokenizer, which is loaded by itself
    return net


def make_layer(config: Any) -> nn.Module:
    """Build a layer of a network from its configuration in transformers."""
    from transformers.models.chameleon.modeling_chameleon import ChameleonDecoderLayer, ChameleonSwinDecoderLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    config._attn_implementation = "sdpa"
    base: Any = {"Emu3": Qwen3DecoderLayer}.get(config.model_type, LlamaDecoderLayer)  # Emu3 has Llama's layers
    if config.model_type == "chameleon":
        base = ChameleonSwinDecoderLayer if config.swin_norm else ChameleonDecoderLayer
    return base(config, 0)


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
        """Compute logits [.., V] from hidden states [.., dim]; those of forced tokens are NEVER."""
        return F.pad(self.chosen(hidden), (0, len(self.ids) - self.chosen.out_features), value=NEVER)

    def embeddings(self, words: Tensor) -> Tensor:
        """Look up the input of the network for each token, [V, dim], given its embedding of words."""
        return words[self.ids]


class Rotary(nn.Module):
    """The rotary table by position, of a network in transformers' layout."""

    table: Tensor  # [positions, width of a head, 2] cosines and sines, float32

    def __init__(self, config: Any):
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        positions = torch.arange(config.max_position_embeddings)[None]
        table = torch.stack(LlamaRotaryEmbedding(config)(torch.zeros(1), positions), -1)[0]
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Look up cosines and sines of position_ids [R, S] in the dtype of x, each [R, S, width of a head]."""
        cos, sin = self.table[position_ids].to(x.dtype).unbind(-1)
        return cos, sin


class Llama(nn.Module):
    """The network, called as transformers calls a causal model. `output` [.., dim] -> [.., V] knows the image's
    tokens."""

    def __init__(self, config: Any, output: nn.Module):
        """Build the network. config: transformers', of the language model; output: `Codes`, or what stands for it."""
        super().__init__()
        from parity_decoders.slots import name_cache

        self.config, self.output = config, output
        self.backbone = make_backbone(config)
        self.cache_keyword = name_cache(self.backbone)

    @property
    def layers(self) -> Any:
        return self.backbone.layers

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    def forward(self, past_key_values: Any = None, logits_to_keep: int = 0, **inputs: Tensor) -> Output:
        """Compute logits and hidden states of inputs: inputs_embeds [R, S, dim], attention_mask, position_ids [R, S].
        See `engine`; logits_to_keep: of that many last positions alone, 0 for all."""
        cache = {self.cache_keyword: past_key_values, "use_cache": past_key_values is not None}
        hidden = self.backbone(**inputs, **cache).last_hidden_state
        return Output(self.output(hidden[:, -logits_to_keep:]), hidden)


# The functions below read folders in transformers' layout.


def read_object(file: Path) -> dict[str, Any]:
    """Read an object of JSON. Raises ParityError if the file does not exist or holds none."""
    try:
        record = foreign_json(file)
    except OSError:
        raise ParityError(f"{file}: no such file; allowed: a folder as transformers saves it") from None
    if not isinstance(record, dict):
        raise ParityError(f"{file}: allowed: an object, {{...}}")
    return record


def read_config(folder: Path, kind: str, name: str) -> Any:
    """Read a folder's configuration as transformers' class `name`, which has the defaults. Raises ParityError unless
    its model_type is `kind` and the class accepts every value."""
    import transformers

    record = read_object(folder / "config.json")
    if record.get("model_type") != kind:
        model_type = str(record.get("model_type"))[:60]
        raise ParityError(f"{folder}: a folder of model_type {model_type!r}; allowed here: {kind!r}")
    try:
        return getattr(transformers, name).from_dict(record)
    except Exception as error:  # transformers' checks raise several families of errors
        cause = " ".join(str(error).split())[:200]
        raise ParityError(f"{folder / 'config.json'}: not a configuration of {kind}: {cause}") from None


def read_tokenizer(folder: Path) -> "Tokenizer":
    """Read a folder's tokenizer. Raises ParityError if the file holds none."""
    from tokenizers import Tokenizer

    read_object(file := folder / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ParityError(f"{file}: not a tokenizer: {str(error).splitlines()[0][:160]}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def look_up_ids(names: Iterable[str], vocabulary: Mapping[str, int], folder: Path) -> dict[str, int]:
    """Look up the ids of tokens by name. Raises ParityError for the first that the vocabulary lacks."""
    names = list(names)
    if lacking := next((name for name in names if name not in vocabulary), ""):
        raise ParityError(f"{folder}: the tokenizer has no {lacking!r}; allowed: that of the model's own repository")
    return {name: vocabulary[name] for name in names}


def rename_prefixes(prefixes: Mapping[str, str]) -> Rename:
    """Make a function that replaces the first prefix that a name has by its value, and returns None if it has none."""
    return lambda name: next((new + name.removeprefix(p) for p, new in prefixes.items() if name.startswith(p)), None)


def fill(
    build: Callable[[], N],
    path: Path,
    rename: Rename,
    device: str,
    dtype: torch.dtype,
    adapt: Adapt = lambda name, tensor: tensor,
) -> N:
    """Build a network and load its weights, one tensor at a time, under the names that `rename` gives and as `adapt`
    changes them; return it on `device`, in `dtype`. Raises ParityError unless all fit."""
    with skip_filling():
        net = build()
    stored = read_shapes(path)
    names = {name: new_name for name in stored if (new_name := rename(name)) is not None}
    check_fit(net, {new_name: adapt(new_name, stored[name]) for name, new_name in names.items()}, path)
    for name, tensor in tensors(path, device, dtype, stored.keys() - names.keys()):
        assign(net, names[name], adapt(names[name], tensor), path)
    return net.to(device).eval()  # buffers that are computed keep their dtype


def load_network(
    config: Any,
    folder: Path,
    ids: list[int],
    codes: int,
    prefixes: Mapping[str, str],
    device: str,
    dtype: torch.dtype,
    adapt: Adapt = lambda name, tensor: tensor,
) -> Llama:
    """Load the transformer of a folder, its output matrix cut to the rows of codes; ids, codes: see `Codes`; prefixes:
    of tensors' names, and what replaces them. Raises ParityError unless all fit."""
    if max(ids) >= config.vocab_size:
        raise ParityError(f"{folder}: the tokenizer has more tokens than the network's {config.vocab_size}")
    chosen = torch.tensor(ids)

    def of_codes(name: str, tensor: Tensor) -> Tensor:
        """Cut the output matrix to the rows of codes; adapt any other tensor."""
        rows = name == "output.chosen.weight"
        return tensor[chosen[:codes].to(tensor.device)] if rows else adapt(name, tensor)

    build = lambda: Llama(config, Codes(config.hidden_size, chosen, codes))  # noqa: E731
    return fill(build, folder, rename_prefixes(prefixes), device, dtype, of_codes)


class HiddenSizes(NamedTuple):
    """The sizes of a network that its speculators have too."""

    dim: int
    hidden: int
    eps: float


def make_speculator(component: str, config: Any) -> nn.Module:
    """Build "heads" or a "drafter" for a target with transformers' configuration `config`, of its language model. It
    drops no features, although Emu3's configuration names a dropout of a tenth: training that is resumed must be the
    same."""
    c = HiddenSizes(config.hidden_size, config.intermediate_size, config.rms_norm_eps)
    return (Heads(c) if component == "heads" else FeatureDrafter(c, make_layer(config), Rotary(config))).eval()


def load_speculator(component: str, file: Path, config: Any, device: str, dtype: torch.dtype) -> nn.Module:
    """Load heads or a drafter that `parity train` wrote; see `make_speculator`."""
    return load_built(partial(make_speculator, component, config), file, (), device, dtype)


def load_vision(kind: str, config: Any, folder: Path, rename: Rename, device: str, dtype: torch.dtype) -> nn.Module:
    """Load transformers' image tokenizer `kind` from a folder, without its encoder."""
    import transformers

    def build() -> Any:
        net = getattr(transformers, kind)(config)
        del net.encoder, net.quant_conv
        return net

    return fill(build, folder, rename, device, dtype)


class ImageTokenizer(nn.Module):
    """An image tokenizer, and the sizes of the images that a model makes of its codes."""

    def __init__(self, net: Any, size: Sizes):
        """Set both. Raises ParityError if the image tokenizer has another number of codes."""
        super().__init__()
        if (codes := len(net.quantize.embedding.weight)) != size["vocab"]:
            raise ParityError(f"models: the image tokenizer has {codes} codes, the model {size['vocab']}")
        self.net, self.size, self.quantize = net, size, net.quantize

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes [n, h, w] to images [n, 3, H, W] in [-1, 1]."""
        return self.net.decode(codes)


# The functions below condition a network on prompts, and decode its tokens to images.


def merge_sizes(family: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of a model's images: those of its family, replaced by those of its manifest."""
    return {**family["network"], **manifest["network"]}


def select_changed(family: Mapping[str, Any], network: Mapping[str, int]) -> dict[str, int]:
    """Select the sizes that differ from those of the family."""
    return {key: value for key, value in network.items() if value != family["sizes"][key]}


def compute_shape(family: Mapping[str, Any], stride: int, manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens in a row of an image, and the pixels of its longer side; stride: pixels a code."""
    s = merge_sizes(family, manifest)
    return s["columns"] + s.get("line", 0), stride * max(s["rows"], s["columns"])


def make_grammar(s: Sizes) -> Tensor:
    """Make the forced tokens [L] of an image, -1 for a code: `line` tokens after each row, then `end` more."""
    line, end = s.get("line", 0), s.get("end", 0)
    forced = torch.arange(s["vocab"], s["vocab"] + line + end)
    row = torch.cat([torch.full((s["columns"],), -1), forced[:line]])
    return torch.cat([row.repeat(s["rows"]), forced[line:]])


def strip_grammar(tokens: Tensor, s: Sizes) -> Tensor:
    """Remove the forced tokens from whole images' tokens [n, L]: codes [n, rows, columns]."""
    rows = s["rows"]
    columns = s["columns"]
    line = s.get("line", 0)
    return tokens[:, : rows * (columns + line)].unflatten(1, (rows, columns + line))[:, :, :columns]


def pad_codes(vectors: Tensor, tokens: int) -> Tensor:
    """Pad vectors [C, D] of codes to vectors [tokens, D]: tokens that are no codes get vectors far from all codes."""
    far_value = 10 * vectors.abs().max()
    return torch.cat([vectors, far_value.expand(tokens - len(vectors), vectors.shape[1])])


def embed_prompts(net: Llama, inputs: Mapping[str, Tensor], guided: bool) -> Prompts:
    """Embed a batch of encoded captions; guided: with unconditional rows."""
    ids, valid = select_batch_ids(inputs, guided)
    words = net.backbone.get_input_embeddings().weight
    output: Any = net.output
    return Prompts(F.embedding(ids, words), valid, ids.shape[1] - valid.sum(1), output.embeddings(words))


def condition(nets: dict[str, Any], inputs: Mapping[str, Tensor], guided: bool, run: Any = None) -> Conditioned:
    """Make the networks of a batch of encoded captions. guided: whether with unconditional rows; run: the target,
    compiled. Raises ParityError if prompt and image are too long."""
    s, net, codes = nets["vq"].size, nets["net"], nets["vq"].quantize.embedding.weight
    forced, ids = make_grammar(s).to(codes.device), select_batch_ids(inputs, guided)[0]
    if (length := ids.shape[1] + len(forced)) > net.config.max_position_embeddings:
        allowed = f"at most {net.config.max_position_embeddings}, max_position_embeddings"
        raise ParityError(f"prompt and image: {length} positions; allowed: {allowed}")
    vocab = s["vocab"] + s.get("line", 0) + s.get("end", 0)
    codebooks = pad_codes(F.normalize(codes, dim=-1), vocab), pad_codes(codes, vocab)
    canvas = Canvas(forced, s["columns"] + s.get("line", 0), codebooks)
    return condition_networks(nets, partial(embed_prompts, inputs=inputs, guided=guided), canvas, run, ids)


def images(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """Decode tokens [n, L] of whole images to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(strip_grammar(tokens, nets["vq"].size))


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Find groups of codes that look alike: bool [G, V], for each group its codes; no forced token is in one."""
    s = nets["vq"].size
    nearest_tokens = mark_above_median(nets["vq"].quantize.embedding.weight)
    return np.pad(nearest_tokens, ((0, 0), (0, s.get("line", 0) + s.get("end", 0))))


# The functions below encode prompts.


def pad_left(rows: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the left: ids [B, length] int64, and which of them are not padding, [B, length] int64."""
    ids = [[0] * (length - len(row)) + row for row in rows]
    valid = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(valid)


def encode_captions(words: "Tokenizer", captions: list[str], reserved: frozenset[int], folder: Path) -> list[list[int]]:
    """Encode texts to ids, cut at MOST; print how many were cut. Raises ParityError for a text that holds a token of
    `reserved`, those of images, or characters that the tokenizer has no token for."""
    result = []
    for caption in captions:
        try:
            coded = words.encode(caption, add_special_tokens=False)
        except Exception as error:  # the tokenizer refuses surrogates, which UTF-8 cannot hold
            cause = str(error).splitlines()[0][:80]
            raise ParityError(f"caption {caption[:60]!a}: {folder} cannot hold it: {cause}") from None
        if any(i in reserved for i in coded.ids):
            token = next(t for i, t in zip(coded.ids, coded.tokens, strict=True) if i in reserved)
            raise ParityError(f"caption {caption[:60]!r}: holds {token!r}, a token of images; allowed: words")
        if caption.strip() and not coded.ids:
            raise ParityError(f"caption {caption[:60]!r}: {folder} has no token for any of it; allowed: words it knows")
        result.append(coded.ids)
    if cut := sum(len(ids) > MOST for ids in result):
        print(f"captions: {cut} of {len(captions)} are longer than {MOST} tokens and are cut there", file=sys.stderr)
    return [ids[:MOST] for ids in result]


def make_prompt_encoder(
    words: "Tokenizer",
    reserved: frozenset[int],
    folder: Path,
    template: str,
    around: tuple[list[int], list[int]],
    negative: Callable[[list[int]], list[int]],
) -> Encoder:
    """Make the function that encodes captions for `condition`, see the module. template: a text with {} for the
    caption; around: ids before and after it; negative: makes of a prompt's ids those of its unconditional row."""
    ids_before, ids_after = around

    def encoded(captions: list[str]) -> dict[str, Tensor]:
        """Encode captions to "words" and "negative" [B, length], left-padded ids, and which of them are no padding."""
        texts = [template.replace("{}", caption) for caption in captions]
        rows = [ids_before + ids + ids_after for ids in encode_captions(words, texts, reserved, folder)]
        length = len(ids_before) + MOST + len(ids_after)
        ids, valid = pad_left(rows, length)
        negatives, negatives_valid = pad_left([negative(row) for row in rows], length)
        return {"words": ids, "valid": valid, "negative": negatives, "negative_valid": negatives_valid}

    return encoded


def select_batch_ids(inputs: Mapping[str, Tensor], guided: bool) -> tuple[Tensor, Tensor]:
    """Select a batch's ids and their mask [R, P]: B conditional rows, then B unconditional ones if `guided`. P is the
    longest row's length, rounded up to a multiple of STEP: padding on the left beyond it is cut."""
    ids, valid = inputs["words"], inputs["valid"]
    if guided:
        ids, valid = torch.cat([ids, inputs["negative"]]), torch.cat([valid, inputs["negative_valid"]])
    length = -(-int(valid.sum(1).max()) // STEP) * STEP
    return ids[:, -length:], valid[:, -length:]
