"""Published models as folders in transformers' layout: configuration, tokenizer, weights in one file or in shards.

Nothing of a folder is executed: its configuration is read by transformers' own class of that name, its tokenizer by the
tokenizers library, its weights as tensors.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.base.weights import assign, check_fit, shapes, tensors, unfilled
from parity.models.discrete.llama import LlamaConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Rename = Callable[[str], str | None]  # a tensor's name in a file to that in the network, None: not wanted
N = TypeVar("N", bound=nn.Module)


def read(file: Path) -> dict[str, Any]:
    """A file of JSON; ParityError for one that is not there, or is none."""
    try:
        said = foreign_json(file)
    except OSError:
        raise ParityError(f"{file}: no such file; allowed: a folder as transformers saves it") from None
    if not isinstance(said, dict):
        raise ParityError(f"{file}: allowed: an object, {{...}}")
    return said


def config(folder: Path, kind: str, name: str) -> Any:
    """A folder's configuration as transformers' class `name`, which knows what the file leaves out. ParityError unless
    its model_type is `kind` and every value is one that the class takes."""
    import transformers

    said = read(folder / "config.json")
    if said.get("model_type") != kind:
        told = str(said.get("model_type"))[:60]
        raise ParityError(f"{folder}: a folder of model_type {told!r}; allowed here: {kind!r}")
    try:
        return getattr(transformers, name).from_dict(said)
    except Exception as error:  # its checks raise several families
        cause = " ".join(str(error).split())[:200]
        raise ParityError(f"{folder / 'config.json'}: not a configuration of {kind}: {cause}") from None


def sizes(c: Any, folder: Path, normed: bool = False) -> LlamaConfig:
    """Sizes of the network of a language model's configuration; ParityError for what `llama` does not compute."""
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


def tokenizer(folder: Path) -> "Tokenizer":
    """A folder's tokenizer; ParityError for a file that holds none."""
    from tokenizers import Tokenizer

    read(file := folder / "tokenizer.json")
    try:
        held = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise ParityError(f"{file}: not a tokenizer: {str(error).splitlines()[0][:160]}") from None
    held.no_padding()
    held.no_truncation()
    return held


def names(words: Mapping[str, int], wanted: Iterable[str], where: Path) -> list[int]:
    """Ids of tokens by name; ParityError for the first that a vocabulary lacks."""
    ids = []
    for name in wanted:
        if name not in words:
            raise ParityError(f"{where}: the tokenizer has no {name!r}; allowed: that of the model's own repository")
        ids.append(words[name])
    return ids


def wanted(path: Path, rename: Rename) -> dict[str, str]:
    """Names of the tensors that are wanted of a folder or a file, to the network's own."""
    return {name: own for name in shapes(path) if (own := rename(name)) is not None}


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
    rows: by the network's name, those of a tensor that it has. adapt: a tensor of a file as the network, which has it
    under that name, wants it."""
    with unfilled():
        net = build()
    own, cut = wanted(path, rename), rows or {}
    held = {own[name]: adapt(own[name], entry) for name, entry in shapes(path).items() if name in own}
    check_fit(net, {name: t[: len(cut[name])] if name in cut else t for name, t in held.items()}, path)
    for name, tensor in tensors(path, device, dtype, {name for name in shapes(path) if name not in own}):
        mine = tensor[cut[own[name]].to(tensor.device)] if own[name] in cut else tensor
        assign(net, own[name], adapt(own[name], mine), path)
    return net.to(device, dtype).eval()


def stripped(name: str, prefixes: Iterable[str]) -> str | None:
    """A tensor's name without the first of the prefixes that it has; None if it has none."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), None)


def beyond(length: int, config: LlamaConfig, what: str) -> None:
    """ParityError for a sequence of more positions than a network was made for."""
    if length > config.places:
        raise ParityError(f"{what}: {length} positions; allowed: at most {config.places}, max_position_embeddings")
