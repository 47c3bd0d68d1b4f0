"""Weights on disk: verified by SHA-256, read without executing anything, loaded whole or not at all."""

import argparse
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from parity.base.digests import check as check
from parity.base.digests import list_verified
from parity.base.digests import parts as parts
from parity.base.digests import sha256 as sha256
from parity.base.errors import ParityError
from parity.base.files import read_config_as, replace_whole, sums
from parity.base.headers import HELD as HELD
from parity.base.headers import PICKLED as PICKLED
from parity.base.headers import check_whole
from parity.base.headers import strip_wrappers as strip_wrappers

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)
Where = str | torch.device
# rotary tables that older versions of libraries stored: they are computed, and files that have them are read as others
TABLES = re.compile(r"(?:^|\.)(?:rotary_emb\.(?:inv_freq|cos_cached|sin_cached)|rope\.freqs|rotary_pos_emb\.inv_freq)$")
MAPPED = 1 << 27  # this many bytes of a pickle are read before its mapped memory is released


def verify_files(folder: Path, names: dict[str, str], label: str, made_by: str) -> dict[str, Any]:
    """Verify files of a folder, `names` by component, against its SHA256SUMS, and return {"files": paths, "sha256":
    digests}, each by component, and "verified" (`list_verified`). Raises ParityError that begins with `label` for a
    wrong digest, or for a file that the list does not name; `made_by` then says how to make one."""
    digests = sums(folder)
    for name in names.values():
        if name not in digests:
            raise ParityError(f"{label}: {folder / 'SHA256SUMS'} does not name {name}; {made_by}, which does")
        check(folder / name, digests[name], label)
    paths = {component: folder / name for component, name in names.items()}
    by_component = {component: digests[name] for component, name in names.items()}
    files = {component: str(path) for component, path in paths.items()}
    return {"files": files, "sha256": by_component, "verified": list_verified(label, paths, by_component)}


def make_unreadable_error(file: Path, problem: str, error: Exception) -> ParityError:
    """Make a ParityError for a file that a library could not read: the file, `problem`, and the first line of the
    library's error, without torch's advice to read it unsafely."""
    cause = " ".join([f"{type(error).__name__}:", *str(error).partition(chr(10))[0].split()])
    if called := re.search(r"GLOBAL (\w[\w.]*)", str(error)):
        cause = f"it calls {called[1]}; allowed: tensors"
    elif "weights_only" in str(error) or not str(error):
        cause = f"{type(error).__name__}; perhaps it is cut off: get it again"
    return ParityError(f"{file}: {problem}: {shorten(cause, 300, placeholder=' ...')}")


def unpickle(file: Path) -> dict[str, Tensor]:
    """Read by plain name the tensors of a pickle that `unpickle_by_key` chooses. Raises ParityError if it has none."""
    return unpickle_by_key(file)[1]


def unpickle_by_key(file: Path) -> tuple[str, dict[str, Tensor]]:
    """Read from a pickle of weights the tensors under the first key of HELD that it has (the moving average comes
    first), or the outermost ones. Return that key, or "", and the tensors by plain name; print a line if other keys
    hold tensors too. Raises ParityError if the file is damaged or holds no tensors.

    Nothing in the file is executed, and unused tensors stay on disk.
    """
    if not file.is_file():
        raise ParityError(f"{file}: no such file")
    check_whole(file)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # some files hold arguments of the training too
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # damaged pickles raise errors of any kind: KeyError, RuntimeError, ...
        raise make_unreadable_error(file, "not a checkpoint that can be read safely", error) from None
    groups: dict[Any, Any] = content if isinstance(content, dict) else {}
    key = next((key for key in HELD if isinstance(groups.get(key), dict)), "")
    held = {strip_wrappers(k): v for k, v in (groups[key] if key else groups).items() if isinstance(v, Tensor)}
    state = {name: tensor for name, tensor in held.items() if not TABLES.search(name)}
    for name, tensor in state.items():  # a tensor with strides of 0 may claim a billion numbers and store one
        if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ParityError(f"{file}: {name} {tuple(tensor.shape)} is not held whole; allowed: plain tensors")
    check_placeholders(file, state)
    if not state:
        keys = ", ".join(map(str, groups)) or type(content).__name__
        raise ParityError(
            f"{file}: holds no tensors by name under a key that is read; it holds {shorten(keys, 120)};"
            f" allowed: tensors by name, or under {', '.join(HELD)}"
        )
    unread = [
        k for k, v in groups.items() if k != key and isinstance(v, dict) and any(map(torch.is_tensor, v.values()))
    ]
    if unread:
        tell_once(f"{file}: {key or 'its own tensors'} is read, not {', '.join(map(str, unread))}")
    return key, state


@cache
def tell_once(text: str) -> None:
    """Print a line to stderr, unless the same line was printed before."""
    print(text, file=sys.stderr, flush=True)


def check_fit(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Raise ParityError unless `state` has the entries of a network's state, all of them and no others, in their
    shapes. The message names `path` and the first four problems."""
    want = module.state_dict()
    problems = [f"missing {k}" for k in want if k not in state] + [f"unexpected {k}" for k in state if k not in want]
    problems += [
        f"{k} has shape {tuple(v.shape)}, expected {tuple(want[k].shape)}"
        for k, v in state.items()
        if k in want and v.shape != want[k].shape
    ]
    if problems:
        suffix = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ParityError(f"{path}: does not fit {type(module).__name__}: {'; '.join(problems[:4])}{suffix}")


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read the names, shapes and dtypes of the tensors of a file, or of a folder of them, as tensors on the device
    "meta", without numbers. Of safetensors only the headers are read. Raises ParityError if they cannot be read."""
    state: dict[str, Tensor] = {}
    for file in parts(path):
        if file.suffix in PICKLED:
            state |= {name: torch.empty_like(tensor, device="meta") for name, tensor in unpickle(file).items()}
            continue
        check_whole(file)
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118
                    if TABLES.search(name):
                        continue
                    entry = reader.get_slice(name)
                    shape = entry.get_shape()
                    dtype = (entry[:0] if shape else entry[...]).dtype
                    state[name] = torch.empty(shape, device="meta", dtype=dtype)
        except Exception as error:  # safetensors raises an error of its own for damaged files, besides OSError
            raise make_unreadable_error(file, "not a safetensors file that can be read", error) from None
    check_placeholders(path, state)
    return state


def check_placeholders(path: Path, state: Mapping[str, Tensor]) -> None:
    """Raise ParityError if tensors stand for numbers that are elsewhere: one of parallel training is empty, or all have
    a single number."""
    empty = next((name for name, tensor in state.items() if not tensor.numel()), None)
    if empty is None and len(state) > 1 and all(tensor.numel() == 1 for tensor in state.values()):
        empty = next(iter(state))
    if empty is not None:
        raise ParityError(
            f"{path}: {empty} of shape {tuple(state[empty].shape)} is a placeholder: the numbers are in the shards of "
            "parallel training (DeepSpeed ZeRO-3, FSDP); allowed: whole tensors, as zero_to_fp32.py or a full state "
            "dict gives them"
        )


def tensors(
    path: Path,
    device: Where = "cpu",
    dtype: torch.dtype | None = torch.float32,
    ignored: Collection[str] = (),
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of everything but `ignored` in a safetensors file, a pickle, or a folder of either, on
    `device`, floating-point numbers in `dtype` (None: as stored). Raises ParityError for eight-bit weights, and for
    NaN and infinite numbers, also those that `dtype` makes infinite.

    At most one tensor is held at a time: a file is reopened, a pickle after MAPPED bytes, so that its mapped memory is
    released; a pickle in torch's older format is held whole. On the device "meta" no number is read.
    """
    for file in parts(path):
        meta = str(device) == "meta"
        pickled = file.suffix in PICKLED and not meta
        is_mapped = pickled and zipfile.is_zipfile(file)  # torch's older format is read whole
        read = unpickle(file) if pickled else read_shapes(file)
        n_mapped = 0
        for name in [name for name in read if name not in ignored]:
            if n_mapped > MAPPED:
                read, n_mapped = unpickle(file), 0
            tensor = read.pop(name)
            n_mapped += tensor.nbytes if is_mapped else 0
            if tensor.is_meta and not meta:
                with safe_open(file, framework="pt") as reader:
                    tensor = reader.get_tensor(name)
            check_numbers(file, name, tensor)
            if not meta:
                target_dtype = (dtype or tensor.dtype) if tensor.is_floating_point() else tensor.dtype
                # the tensor is copied, so that it is aligned and does not keep the file's mapped memory
                tensor = tensor.to(device, target_dtype, copy=tensor.device.type == "cpu")
                if target_dtype == torch.float16:
                    check_numbers(file, name, tensor, f" in {target_dtype}; allowed: bfloat16, float32")
            yield name, tensor
            del tensor


def check_numbers(file: Path, name: str, tensor: Tensor, suffix: str = "; allowed: numbers") -> None:
    """Raise ParityError if a tensor of a file holds NaN or infinite numbers (a mask may), or eight-bit numbers, whose
    scales are stored elsewhere. suffix: what the message says is allowed."""
    if not tensor.is_floating_point():
        return
    if tensor.element_size() == 1:
        raise ParityError(f"{file}: {name} is {tensor.dtype}; allowed: float16, bfloat16, float32, float64")
    if tensor.is_meta or tensor.isfinite().all() or name.endswith("mask"):
        return
    raise ParityError(f"{file}: {name} holds {'NaN' if tensor.isnan().any() else 'infinite numbers'}{suffix}")


def check_floating(path: Path, name: str, tensor: Tensor) -> None:
    """Raise ParityError if a tensor of a file that stands for a parameter does not hold floating-point numbers."""
    if not tensor.is_floating_point():
        raise ParityError(f"{path}: {name} is {tensor.dtype}; allowed: float16, bfloat16, float32, float64")


def assign(net: nn.Module, name: str, tensor: Tensor, path: Path, replace: bool = True) -> None:
    """Put a tensor in place of a network's entry `name`; with replace=False, copy its numbers there instead. Raises
    ParityError, which names `path`, for integers in place of floating-point numbers."""
    owner, _, attribute = name.rpartition(".")
    module = net.get_submodule(owner)  # loading into `net` would walk through all of its submodules for each tensor
    if getattr(module, attribute).is_floating_point():
        check_floating(path, name, tensor)
    module.load_state_dict({attribute: tensor}, strict=False, assign=replace)


class Unfilled(TorchFunctionMode):
    """Skips in-place operations on the meta device, such as initialisation: torch's own mode imports for seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function, except in-place ones (`normal_`) on a meta tensor, which is returned as it is."""
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        name = getattr(function, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and isinstance(first, Tensor) and first.is_meta:
            return first
        return function(*args, **kwargs)


@contextmanager
def skip_filling() -> Iterator[None]:
    """Make a context in which networks are built without initialisation: their parameters are on the meta device,
    without memory or values; buffers, many of which are in no file, are computed as always."""

    def empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """Replace a parameter that is being registered by one without numbers on the meta device."""
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
    """Load a complete file, or folder, of weights into a network. Raises ParityError unless every entry fits, except
    those `ignored`.

    A network built inside `skip_filling` takes over the tensors, on `device` and in `dtype`; into any other they are
    copied.
    """
    check_fit(module, {strip_wrappers(k): v for k, v in read_shapes(path).items() if k not in ignored}, path)
    empty = {name for name, entry in module.state_dict().items() if entry.is_meta}
    for name, tensor in tensors(path, device, dtype, ignored):
        assign(module, strip_wrappers(name), tensor, path, replace=strip_wrappers(name) in empty or tensor.is_meta)


def load_network(
    build: Callable[[C], N],
    config: type[C],
    file: Path,
    ignored: tuple[str, ...] = (),
    device: Where = "cpu",
    dtype: torch.dtype = torch.float32,
) -> N:
    """Load a network from our safetensors file: read the sizes in its header as a `config`, without the `ignored` keys,
    `build` the network of them, and load the weights. Raises ParityError unless they fit."""
    return load_built(partial(build, read_config_as(config, file, ignored)), file, (), device, dtype)


def load_built(
    build: Callable[[], N],
    file: Path,
    ignored: tuple[str, ...] = (),
    device: Where = "cpu",
    dtype: torch.dtype = torch.float32,
) -> N:
    """Build a network and load its weights from a file, all but the `ignored` tensors, without a second copy; return it
    on `device`, in `dtype`, in evaluation mode. Raises ParityError unless they fit."""
    with skip_filling():
        net = build()
    load_weights(net, file, ignored, device, dtype)
    return net.to(device, dtype).eval()


def count_parameters(net: nn.Module) -> int:
    """Count the numbers in a network's parameters; a parameter that modules share counts once."""
    return sum(parameter.numel() for parameter in net.parameters())


def save_weights(state: Mapping[str, Tensor], file: Path, config: Mapping[str, Any] | None = None) -> None:
    """Save tensors as a safetensors file, complete or not at all; its header holds `config`, the network's sizes."""
    header = None if config is None else {"config": json.dumps(config, sort_keys=True)}
    with replace_whole(file) as temporary:
        try:
            save_file({k: v.contiguous() for k, v in state.items()}, temporary, metadata=header)
        except SafetensorError as error:  # holds the system's error, such as a full disk, in words
            if code := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
            raise
