"""Published checkpoints of a continuous family as a folder of weights that an experiment reads: `parity.models
convert`.

Source: the released files, mar_{base,large,huge}/checkpoint-last.pth or mar-{base,large,huge}.safetensors,
xAR-{B,L,H}.pth, harmon_{0.5b,1.5b}.pth or the folder Harmon-1_5B, and kl16.ckpt or kl16.safetensors. Parameter names
are theirs, and a file's shapes give its sizes, except the number of attention heads. A family with released files has a
function `read_config(state)`, which returns its sizes. It may also have

    rename_published(state) -> state    the entries of a file that are this network's
    resize(state, config, grid)         weights for another number of tokens a side than it was trained on; such a
                                        family is released for twice as many
    regroup(state, config, cell)        weights for cells of another number of tokens a side than it was trained on
    PROMPT, NOTHING                     text around a caption, and the one that guidance compares with: such a family
                                        reads captions with a tokenizer of its own
"""

import importlib
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from parity.base import weights
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.base.weights import (
    PICKLED,
    check_fit,
    check_floating,
    save_weights,
    sha256,
    strip_wrappers,
    unpickle_by_key,
)
from parity.experiment.module_metadata import find_function, modules
from parity.models.continuous import kl

FOLDER = "models/continuous"
RELEASED = [m for m in modules(FOLDER) if find_function(FOLDER, m, "read_config")]
COMPUTED = re.compile(r"mask|rope\..*|.*\.freqs.*")  # released buffers of these names are computed by the networks here
VAE = "vae."  # in a file that holds it with the model, the autoencoder's tensors begin so
# for each key that may hold a file's tensors, what they are, and what our header says of them (`kl.AVERAGE`)
HELD = {
    "model_ema": ("the moving average of its weights", "yes"),
    "": ("weights; it does not say whether they are an average", "unsaid"),
}
PLAIN = ("plain weights, no moving average", "no")
MARKS = ("<|im_start|>", "<|im_end|>")  # a PROMPT may have these special tokens


def read_published(path: Path) -> tuple[dict[str, Tensor], tuple[str, str]]:
    """Read a published file, or a folder, as tensors by plain name, and the value of HELD that says what they are."""
    if path.is_file() and path.suffix in PICKLED:
        key, state = unpickle_by_key(path)
        return state, HELD.get(key, PLAIN)
    return {strip_wrappers(name): tensor for name, tensor in weights.tensors(path, dtype=None)}, HELD[""]


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a published file, or a folder, by plain name, on the device "meta", without numbers."""
    return {strip_wrappers(name): tensor for name, tensor in weights.tensors(path, "meta", None)}


def read_sizes(read: Callable[[dict[str, Tensor]], Any], state: dict[str, Tensor], file: Path) -> Any:
    """Return the sizes that `read` finds in the tensors. Raises ParityError if they are not those of its family."""
    try:
        return read(state)
    except KeyError as error:
        name = read.__module__.rpartition(".")[2]
        raise ParityError(f"{file}: not a checkpoint of {name}: no entry {error}") from None
    except ParityError as error:
        raise ParityError(f"{file}: {error}") from None


def check_weights(build: Callable[[], nn.Module], state: dict[str, Tensor], file: Path) -> None:
    """Raise ParityError unless tensors, with their numbers or without, fit the network that `build` makes."""
    with torch.device("meta"):
        net = build()
    check_fit(net, state, file)
    for name, _ in net.named_parameters():
        check_floating(file, name, state[name])


def fit_autoencoder(state: dict[str, Tensor], file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights of a published autoencoder, from a file of its own or under `vae.` in a model's, by our names,
    and its sizes. Raises ParityError unless they fit."""
    state = kl.select_prefixed(state, VAE) or state
    config = read_sizes(kl.read_sizes, state, file)
    state = kl.rename_published(state, len(config.ch_mult))
    check_weights(lambda: kl.KL(config), state, file)
    return state, asdict(config)


def fit_network(
    family: Any, state: dict[str, Tensor], file: Path, grid: int, tokenizer: Any, cell: int = 0
) -> tuple[Any, Any]:
    """Return a released network's weights by the names of `family`, a module, resized to `grid` tokens a side and
    regrouped in cells of `cell` a side if that is done, and its sizes. Raises ParityError unless they fit, and the
    tokenizer too."""
    state = {k: v for k, v in state.items() if not COMPUTED.fullmatch(k)}
    state = family.rename_published(state) if hasattr(family, "rename_published") else state
    config = read_sizes(family.read_config, state, file)
    if hasattr(family, "resize"):
        state = family.resize(state, config, grid or 2 * config.grid)
        config = replace(config, grid=grid or 2 * config.grid)
    if cell and hasattr(family, "regroup"):
        if config.grid % cell:
            raise ParityError(f"{file}: cell {cell}: allowed: a divisor of its {config.grid} tokens a side")
        state = family.regroup(state, config, cell)
        config = replace(config, cell=cell)
    if tokenizer is not None:
        if (words := tokenizer.get_vocab_size()) > config.vocab:
            raise ParityError(f"{file}: {config.vocab} words, and a tokenizer of {words}; allowed: its own tokenizer")
        config = replace(config, without=tuple(tokenizer.encode(family.NOTHING).ids))
    check_weights(lambda: family.Network(config), state, file)
    return state, config


def find_tokenizer(path: Path) -> Path:
    """Return the path of a tokenizer.json, given it or its folder."""
    return path / "tokenizer.json" if path.is_dir() else path


def read_tokenizer(path: Path, family: Any) -> Any:
    """Read a tokenizer.json, or a folder's. Raises ParityError if that fails, or if it lacks a mark of PROMPT."""
    from tokenizers import Tokenizer

    file = find_tokenizer(path)
    if not file.is_file():
        raise ParityError(f"{file}: no such file; allowed: --tokenizer with a tokenizer.json or its folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ParityError(f"{file}: not a tokenizer that can be read: {str(error).splitlines()[0]}") from None
    if lacks := [mark for mark in MARKS if mark in family.PROMPT and tokenizer.token_to_id(mark) is None]:
        raise ParityError(f"{file}: does not know {lacks[0]}; allowed: the tokenizer the model was trained with")
    return tokenizer


def check_loads(
    model: str, target: Path, draft: Path | None, vae: Path | None, tokenizer: Path | None, grid: int
) -> None:
    """Raise ParityError for files that `convert`, which has the same arguments, would refuse, judged by shapes
    alone."""
    family = importlib.import_module(f"parity.models.continuous.{model}")
    words = None if tokenizer is None else read_tokenizer(tokenizer, family)
    for file in (target, draft):
        if file is not None:
            fit_network(family, read_shapes(file), file, grid, words)
    fit_autoencoder(read_shapes(vae or target), vae or target)


def convert(
    model: str,
    target: Path,
    draft: Path | None,
    vae: Path | None,
    out: Path,
    tokenizer: Path | None = None,
    grid: int = 0,
    cell: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Write `out`: the pair, its autoencoder, its tokenizer if it has one, and SHA256SUMS. Raises ParityError for a
    file that does not fit its network.

    target, draft, vae  files, or folders of the Hugging Face layout; no draft: the target alone; no vae: the target's
    grid                tokens a side, for a family that can be resized; 0 for what it is released for
    cell                tokens a side of a cell, for a family that can be regrouped; 0 for what it is released for
    """
    family = importlib.import_module(f"parity.models.continuous.{model}")
    words = None
    if hasattr(family, "PROMPT"):
        words = read_tokenizer(tokenizer or (target if target.is_dir() else target.parent), family)
    elif tokenizer is not None:
        raise ParityError(f"--tokenizer {tokenizer}: {model} reads no captions; allowed: none")
    if grid and not hasattr(family, "resize"):
        raise ParityError(f"--grid {grid}: the images of {model} have one size; allowed: none")
    if cell and not hasattr(family, "regroup"):
        raise ParityError(f"--cell {cell}: {model} has no cells; allowed: none")
    sums: dict[str, str] = {}

    def write(name: str, state: dict[str, Tensor], header: dict[str, Any]) -> None:
        save_weights(state, out / name, header)
        sums[name] = sha256(out / name)

    write("kl.safetensors", *fit_autoencoder(read_published(vae or target)[0], vae or target))
    for name, file in {model: target, f"{model}-draft": draft}.items():
        if file is not None:
            state, (kind_of_weights, average) = read_published(file)
            tell(f"{file}: {kind_of_weights}")
            state, config = fit_network(family, state, file, grid, words, cell)
            header = asdict(config) | {kl.LATENTS: sums["kl.safetensors"][:16], kl.AVERAGE: average}
            write(f"{name}.safetensors", state, header)
    if words is not None:
        publish(out / f"{model}-tokenizer.json", words.to_str().encode())
        sums[f"{model}-tokenizer.json"] = sha256(out / f"{model}-tokenizer.json")
    publish(out / "SHA256SUMS", "".join(f"{total}  {name}\n" for name, total in sums.items()).encode())
