"""Weights on disk: verified by SHA-256, read without executing anything, loaded whole or not at all."""

import argparse
import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from parity.base.digests import check as check
from parity.base.digests import parts as parts
from parity.base.digests import sha256 as sha256
from parity.base.errors import ParityError
from parity.base.files import configured, sums, whole

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)
Where = str | torch.device
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
HELD = ("model_ema", "model", "module", "state_dict")  # where published pickles keep their tensors: the first of these
DRAWN = {
    "normal_",
    "uniform_",
    "trunc_normal_",
    "kaiming_uniform_",
    "xavier_uniform_",
    "erfinv_",
    "mul_",
    "add_",
    "clamp_",
}
WRAPPED = re.compile(
    r"(?:(?<=^)|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module)\.|^module\."
)  # of compiled and parallel runs


def verified_files(folder: Path, parts: dict[str, str], what: str, made_by: str) -> dict[str, dict[str, str]]:
    """{"files": paths, "sha256": digests} by part, of files of a folder, verified against its SHA256SUMS; ParityError
    that begins with `what`, and says who makes a file that the list does not name."""
    known = sums(folder)
    for name in parts.values():
        if name not in known:
            raise ParityError(f"{what}: {folder / 'SHA256SUMS'} does not name {name}; {made_by}, which does")
        check(folder / name, known[name], what)
    files = {part: str(folder / name) for part, name in parts.items()}
    return {"files": files, "sha256": {part: known[name] for part, name in parts.items()}}


def a_page(file: Path) -> str:
    """What to do, for a web page that was saved in place of weights; "" for any other file."""
    try:
        with file.open("rb") as stream:
            start = stream.read(512).lstrip().lower()
    except OSError:
        return ""
    page = start.startswith((b"<!doctype", b"<html", b"version https://git-lfs"))
    return "; it is a web page or a pointer and not the weights: download the file itself" if page else ""


def unpickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a published pickle, of its moving average if it has one; ParityError if it is no such file."""
    return unpickled(file)[1]


def unpickled(file: Path) -> tuple[str, dict[str, Tensor]]:
    """The same, and the key that held them: one of HELD, or "".

    Nothing in the file is executed, and unused tensors stay on disk. Prefixes of compiled or parallel training are
    removed from the names.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # some keep the training run's arguments
            held: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except FileNotFoundError:
        raise ParityError(f"{file}: no such file") from None
    except Exception as error:  # a reader of pickles raises what the bytes make it: KeyError, RuntimeError, ...
        raise ParityError(f"{file}: not a checkpoint that can be read safely: {refusal(error)}{a_page(file)}") from None
    under = ""
    if isinstance(held, dict):
        under = next((key for key in HELD if isinstance(held.get(key), dict)), "")
        held = held[under] if under else held
    found = {plain(k): v for k, v in held.items() if isinstance(v, Tensor)} if isinstance(held, dict) else {}
    for name, tensor in found.items():  # a view of one number may say that it is a billion
        if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ParityError(f"{file}: {name} {tuple(tensor.shape)} is not held whole; allowed: plain tensors")
    if not found:
        raise ParityError(f"{file}: holds no tensors by name; allowed: a checkpoint of a network")
    return under, found


def refusal(error: Exception) -> str:
    """Why torch does not read a pickle, in a line, without its advice to read it unsafely."""
    if wanted := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return f"it calls {wanted[1]}; allowed: tensors"
    return type(error).__name__ if "weights_only" in str(error) else repr(error).splitlines()[0][:200]


def plain(name: str) -> str:
    """A tensor's name without what a compiled or parallel training run puts before it."""
    return WRAPPED.sub("", name)


def check_fit(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
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


def shapes(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder of them, without their numbers: of safetensors the headers alone are read.
    ParityError for what cannot be read."""
    return {name: entry for part in parts(file) for name, entry in _shapes(part).items()}


def _shapes(file: Path) -> dict[str, Tensor]:
    if file.suffix in PICKLED:
        return {name: torch.empty_like(tensor, device="meta") for name, tensor in unpickle(file).items()}
    try:
        with safe_open(file, framework="pt") as held:
            return {name: unread(held.get_slice(name)) for name in held.keys()}  # noqa: SIM118
    except Exception as error:  # its own kind of error for bytes that are none, OSError, ...
        cause = str(error).splitlines()[0]
        raise ParityError(f"{file}: not a safetensors file that can be read: {cause}{a_page(file)}") from None


def unread(entry: Any) -> Tensor:
    """Shape and dtype of a safetensors entry, on the device "meta"."""
    shape = entry.get_shape()
    return torch.empty(shape, device="meta", dtype=(entry[:0] if shape else entry[...]).dtype)


def tensors(
    path: Path,
    device: Where = "cpu",
    dtype: torch.dtype | None = torch.float32,
    ignored: Collection[str] = (),
) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a safetensors file, a pickle, or a folder of either, one at a time, on `device`.
    Floating-point tensors are in `dtype`, or as stored for None.

    At most one tensor is held at a time: a safetensors file is reopened for each, so that its mapped memory is
    released. On the device "meta" no number is read.
    """
    if str(device) == "meta":
        for name, entry in shapes(path).items():
            if name not in ignored:
                check_numbers(path, name, entry)
                yield name, entry
        return
    for file in parts(path):
        pickled = unpickle(file) if file.suffix in PICKLED else {}
        for name in _shapes(file) if not pickled else list(pickled):
            if name in ignored:
                continue
            if pickled:
                tensor = pickled.pop(name)
            else:
                with safe_open(file, framework="pt", device=str(device)) as held:
                    tensor = held.get_tensor(name)
            check_numbers(file, name, tensor)
            to = (dtype or tensor.dtype) if tensor.is_floating_point() else tensor.dtype
            yield name, tensor.to(device, to, copy=tensor.device.type == "cpu")  # memory of its own, aligned
            del tensor


def check_numbers(file: Path, name: str, tensor: Tensor) -> None:
    """ParityError for weights of eight bits, whose scales stand elsewhere, and for weights that are not numbers."""
    if not tensor.is_floating_point():
        return
    if tensor.element_size() == 1:
        raise ParityError(f"{file}: {name} is {tensor.dtype}; allowed: float16, bfloat16, float32, float64")
    if not tensor.is_meta and tensor.isnan().any():
        raise ParityError(f"{file}: {name} holds NaN; allowed: numbers")


def check_floating(path: Path, name: str, tensor: Tensor) -> None:
    """ParityError for integers in place of a parameter."""
    if not tensor.is_floating_point():
        raise ParityError(f"{path}: {name} is {tensor.dtype}; allowed: float16, bfloat16, float32, float64")


def assign(net: nn.Module, name: str, tensor: Tensor, path: Path) -> None:
    """Put a tensor in the place of a network's entry `name`; ParityError for integers in place of a parameter."""
    owner, _, own = name.rpartition(".")  # which alone is asked: a load walks all that is below
    module = net.get_submodule(owner)
    if own in dict(module.named_parameters(recurse=False)):
        check_floating(path, name, tensor)
    module.load_state_dict({own: tensor}, strict=False, assign=True)


def read_weights(path: Path, device: Where = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a folder of them; what is floating-point in `dtype`."""
    return dict(tensors(path, device, dtype))


class Unfilled(TorchFunctionMode):
    """What would be drawn for parameters on the meta device is not: asking it costs seconds of imports."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if getattr(function, "__name__", "") in DRAWN and isinstance(first, Tensor) and first.is_meta:
            return first
        return function(*args, **kwargs)


@contextmanager
def unfilled() -> Iterator[None]:
    """Networks built inside have parameters on the meta device, without memory or values; buffers, many of which are in
    no file, are computed as always."""

    def empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return parameter
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(empty)  # type: ignore[arg-type]  # torch's stub says None
    try:
        with Unfilled():
            yield
    finally:
        hook.remove()


def load_weights(
    module: nn.Module,
    path: Path,
    ignored: tuple[str, ...] = (),
    device: Where = "cpu",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Load a file of weights whole; ParityError unless every entry fits, those `ignored` aside.

    A network built `unfilled` takes the tensors as they come, on `device` and in `dtype`; into any other they are
    copied.
    """
    check_fit(module, {plain(k): v for k, v in shapes(path).items() if k not in ignored}, path)
    into = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for stored, tensor in tensors(path, device, dtype, ignored):
            name = plain(stored)
            if into[name].is_meta:
                assign(module, name, tensor, path)
            else:
                if into[name].is_floating_point():
                    check_floating(path, name, tensor)
                into[name].copy_(tensor)


def network(
    build: Callable[[C], N],
    config: type[C],
    file: Path,
    ignored: tuple[str, ...] = (),
    device: Where = "cpu",
    dtype: torch.dtype = torch.float32,
) -> N:
    """A network of the sizes in its file's header, `ignored` ones aside, with its weights, or ParityError."""
    return loaded(partial(build, configured(config, file, ignored)), file, (), device, dtype)


def loaded(
    build: Callable[[], N],
    file: Path,
    ignored: tuple[str, ...] = (),
    device: Where = "cpu",
    dtype: torch.dtype = torch.float32,
) -> N:
    """A network with its weights, on its device and in its dtype without a second copy of them; ParityError unless they
    fit."""
    with unfilled():
        net = build()
    load_weights(net, file, ignored, device, dtype)
    return net.to(device, dtype).eval()


def save_weights(state: Mapping[str, Tensor], file: Path, config: Mapping[str, Any] | None = None) -> None:
    """A safetensors file in its place, whole or not at all, its sizes in the header; tensors are written from where
    they are, mapped ones from their file."""
    said = {} if config is None else {"metadata": {"config": json.dumps(config, sort_keys=True)}}
    with whole(file) as part:
        save_file({k: v.contiguous() for k, v in state.items()}, part, **said)
