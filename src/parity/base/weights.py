"""Weights on disk: verified by SHA-256, read without executing anything, loaded whole or not at all."""

import argparse
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import configured, sums

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)
HELD = ("model_ema", "model", "module", "state_dict")  # where published pickles keep their tensors: the first of these


def parts(path: Path) -> list[Path]:
    """Files of weights: a file itself, or a folder's *.safetensors in order of name. ParityError if there are none."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        lacks = "holds no *.safetensors" if path.is_dir() else "no such file"
        raise ParityError(f"{path}: {lacks}; allowed: a file of weights, or a folder of *.safetensors")
    return files


def sha256(path: Path) -> str:
    """Of a file, or of a folder's *.safetensors one after the other."""
    whole = hashlib.sha256()
    for file in parts(path):
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                whole.update(block)
    return whole.hexdigest()


def check(path: Path, expected: str, what: str) -> None:
    """ParityError that begins with `what` unless a file, or folder, has this digest."""
    if not path.exists():
        raise ParityError(f"{what} = {str(path)!r}: no such file")
    got = sha256(path)
    if got != expected:
        raise ParityError(
            f"{what} = {str(path)!r}: SHA-256 is {got[:16]}..., expected {expected[:16]}...;"
            " delete the file and get it again"
        )


def listed(folder: Path, parts: dict[str, str], what: str, made_by: str) -> dict[str, dict[str, str]]:
    """{"files": paths, "sha256": digests} by part, of files of a folder, verified against its SHA256SUMS; ParityError
    that begins with `what`, and says who makes a file that the list does not name."""
    known = sums(folder)
    for name in parts.values():
        if name not in known:
            raise ParityError(f"{what}: {folder / 'SHA256SUMS'} does not name {name}; {made_by}, which does")
        check(folder / name, known[name], what)
    files = {part: str(folder / name) for part, name in parts.items()}
    return {"files": files, "sha256": {part: known[name] for part, name in parts.items()}}


def unpickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a published pickle, of its moving average if it has one; ParityError for what is none.

    Nothing in it is executed; what it does not need stays on disk.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # some keep the training run's arguments
            held: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except FileNotFoundError:
        raise ParityError(f"{file}: no such file") from None
    except Exception as error:  # a reader of pickles raises what the bytes make it: KeyError, RuntimeError, ...
        cause = repr(error).splitlines()[0][:200]
        raise ParityError(f"{file}: not a checkpoint that can be read safely: {cause}") from None
    held = next((held[key] for key in HELD if key in held), held)
    return {k: v for k, v in held.items() if isinstance(v, Tensor)}


def check_fit(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """ParityError that lists missing, unexpected or wrongly shaped entries."""
    want = module.state_dict()
    problems = [f"missing {k}" for k in want if k not in state] + [f"unexpected {k}" for k in state if k not in want]
    problems += [
        f"{k} has shape {tuple(v.shape)}, expected {tuple(want[k].shape)}"
        for k, v in state.items()
        if k in want and v.shape != want[k].shape
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ParityError(f"{path}: does not fit {type(module).__name__}: {'; '.join(problems[:4])}{more}")


def read_weights(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a folder of them; what is floating-point in `dtype`."""
    tensors = {k: v for file in parts(path) for k, v in load_file(file, device=device).items()}
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}


def load_weights(module: nn.Module, path: Path, ignored: tuple[str, ...] = ()) -> None:
    """Load a safetensors file whole, in float32; ParityError unless every entry fits, those `ignored` aside."""
    state = {k: v for k, v in read_weights(path).items() if k not in ignored}
    check_fit(module, state, path)
    module.load_state_dict(state)


def network(build: Callable[[C], N], config: type[C], file: Path, ignored: tuple[str, ...] = ()) -> N:
    """A network of the sizes in its file's header, `ignored` ones aside, with its weights, or ParityError."""
    net = build(configured(config, file, ignored))
    load_weights(net, file)
    return net.eval()
