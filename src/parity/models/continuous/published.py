"""Published checkpoints of a continuous family as a folder of weights that an experiment reads: `parity.models
convert`.

Source: the released files, mar_{base,large,huge}/checkpoint-last.pth or mar-{base,large,huge}.safetensors,
xAR-{B,L,H}.pth, harmon_{0.5b,1.5b}.pth or the folder Harmon-1_5B, and kl16.ckpt or kl16.safetensors. Parameter names
are theirs, so a file's shapes say its sizes; only the number of attention heads does not show in them. A family that
has released files says so with a function `released(state)`, which gives its sizes. It may also have

    published_names(state) -> state     what of a file is this network's
    resized(state, config, grid)        weights for another number of tokens a side than it was trained on; then twice
                                        as many is what it is released for
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
from parity.base.weights import PICKLED, check_fit, check_floating, plain, save_weights, sha256, unpickled
from parity.experiment.module_metadata import function, modules
from parity.models.continuous import kl
from parity.models.continuous.shapes import under

FOLDER = "models/continuous"
RELEASED = [m for m in modules(FOLDER) if function(FOLDER, m, "released")]
COMPUTED = re.compile(r"mask|rope\..*|.*\.freqs.*")  # released buffers, which the networks here compute
VAE = "vae."  # where a file holds its autoencoder beside it
HELD = {"model_ema": "the moving average of its weights", "": "weights; it does not say whether they are an average"}
PLAIN = "plain weights, no moving average"
KEPT = {HELD["model_ema"]: "yes", HELD[""]: "unsaid", PLAIN: "no"}  # in the header
MARKS = ("<|im_start|>", "<|im_end|>")  # of a PROMPT


def write(state: dict[str, Tensor], file: Path, config: dict[str, Any]) -> str:
    """A safetensors file in its place, whole or not at all, and its SHA-256."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_weights(state, file, config)
    return sha256(file)


def tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """What a published file, or a folder of them, holds, and what that is. ParityError for what cannot be read."""
    if path.is_file() and path.suffix in PICKLED:
        under_key, state = unpickled(path)
        return state, HELD.get(under_key, PLAIN)
    return {plain(name): tensor for name, tensor in weights.tensors(path, dtype=None)}, HELD[""]


def sizes(family: Any, state: dict[str, Tensor], file: Path) -> Any:
    """The sizes of a network, from the shapes of its weights; ParityError where they are not those of its family."""
    try:
        return family.released(state) if hasattr(family, "released") else family.read_sizes(state)
    except KeyError as error:
        name = family.__name__.rpartition(".")[2]
        raise ParityError(f"{file}: not a checkpoint of {name}: no entry {error}") from None
    except ParityError as error:
        raise ParityError(f"{file}: {error}") from None


def fitted_autoencoder(state: dict[str, Tensor], file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An autoencoder's weights, of a file of its own or of one that holds it under `vae.`, and its sizes; ParityError
    unless they fit."""
    state = under(state, VAE) or state
    config = sizes(kl, state, file)
    state = kl.published_names(state, len(config.ch_mult))
    check_filled(lambda: kl.KL(config), state, file)
    return state, asdict(config)


def check_filled(build: Callable[[], nn.Module], state: dict[str, Tensor], file: Path) -> None:
    """ParityError unless these weights, which may be without their numbers, fill a network."""
    with torch.device("meta"):
        net = build()
    check_fit(net, state, file)
    for name, _ in net.named_parameters():
        check_floating(file, name, state[name])


def tokenizer_file(path: Path) -> Path:
    """A tokenizer.json, or that of its folder."""
    return path / "tokenizer.json" if path.is_dir() else path


def encoder(path: Path, family: Any) -> Any:
    """The tokenizer of a folder, or a tokenizer.json; ParityError for one that cannot be read, or does not know the
    marks of a prompt."""
    from tokenizers import Tokenizer

    file = tokenizer_file(path)
    if not file.is_file():
        raise ParityError(f"{file}: no such file; allowed: --tokenizer with a tokenizer.json or its folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # a plain Exception of its own
        raise ParityError(f"{file}: not a tokenizer that can be read: {str(error).splitlines()[0]}") from None
    if lacks := [mark for mark in MARKS if mark in family.PROMPT and tokenizer.token_to_id(mark) is None]:
        raise ParityError(f"{file}: does not know {lacks[0]}; allowed: the tokenizer the model was trained with")
    return tokenizer


def fitted(family: Any, state: dict[str, Tensor], file: Path, grid: int, tokenizer: Any) -> tuple[Any, Any]:
    """A released network's weights as its module names them, and its sizes; ParityError unless they fit."""
    state = {k: v for k, v in state.items() if not COMPUTED.fullmatch(k)}
    state = family.published_names(state) if hasattr(family, "published_names") else state
    config = sizes(family, state, file)
    if hasattr(family, "resized"):
        state = family.resized(state, config, grid or 2 * config.grid)
        config = replace(config, grid=grid or 2 * config.grid)
    if tokenizer is not None:
        if tokenizer.get_vocab_size() > config.vocab:
            had = tokenizer.get_vocab_size()
            raise ParityError(f"{file}: {config.vocab} words, and a tokenizer of {had}; allowed: its own tokenizer")
        config = replace(config, without=tuple(tokenizer.encode(family.NOTHING).ids))
    check_filled(lambda: family.Network(config), state, file)
    return state, config


def check_loads(
    model: str, target: Path, draft: Path | None, vae: Path | None, tokenizer: Path | None, grid: int
) -> None:
    """ParityError for files that `convert` would refuse; no number of their weights is read."""
    family = importlib.import_module(f"parity.models.continuous.{model}")
    words = None if tokenizer is None else encoder(tokenizer, family)
    for file in (target, draft):
        if file is not None:
            fitted(family, without_numbers(file), file, grid, words)
    fitted_autoencoder(without_numbers(vae or target), vae or target)


def without_numbers(file: Path) -> dict[str, Tensor]:
    return {plain(name): tensor for name, tensor in weights.tensors(file, "meta", None)}


def convert(
    model: str,
    target: Path,
    draft: Path | None,
    vae: Path | None,
    out: Path,
    tokenizer: Path | None = None,
    grid: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Write `out`: the pair, its autoencoder, its tokenizer if it has one, and SHA256SUMS. ParityError for a file that
    does not fit its network.

    target, draft, vae  files, or folders of the Hugging Face layout; no draft: the target alone; no vae: the target's
    grid                tokens a side, for a family that can be resized; 0 for what it is released for
    """
    family = importlib.import_module(f"parity.models.continuous.{model}")
    words = None
    if hasattr(family, "PROMPT"):
        words = encoder(tokenizer or (target if target.is_dir() else target.parent), family)
    elif tokenizer is not None:
        raise ParityError(f"--tokenizer {tokenizer}: {model} reads no captions; allowed: none")
    if grid and not hasattr(family, "resized"):
        raise ParityError(f"--grid {grid}: the pictures of {model} have one size; allowed: none")
    file = vae or target
    state, header = fitted_autoencoder(tensors(file)[0], file)
    sums = {"kl.safetensors": write(state, out / "kl.safetensors", header)}
    files = {model: target} | ({f"{model}-draft": draft} if draft else {})
    for name, file in files.items():
        state, what = tensors(file)
        tell(f"{file}: {what}")
        state, config = fitted(family, state, file, grid, words)
        header = asdict(config) | {kl.LATENTS: sums["kl.safetensors"][:16], kl.AVERAGE: KEPT[what]}
        sums[f"{name}.safetensors"] = write(state, out / f"{name}.safetensors", header)
    if words is not None:
        publish(out / f"{model}-tokenizer.json", words.to_str().encode())
        sums[f"{model}-tokenizer.json"] = sha256(out / f"{model}-tokenizer.json")
    publish(out / "SHA256SUMS", "".join(f"{total}  {name}\n" for name, total in sums.items()).encode())
