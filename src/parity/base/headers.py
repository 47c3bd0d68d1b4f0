"""What files of weights hold, without their numbers: names and shapes of tensors, and whether a file is whole. Needs no
torch, and nothing of a file is executed."""

import json
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from parity.base.errors import ParityError

Shape = tuple[int, ...]
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
HELD = ("model_ema", "model", "module", "state_dict")  # where published pickles keep their tensors: the first of these
WRAPPED = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module)\.|^module\.")  # by compiled or parallel training
PAGE = (b"<!doctype", b"<html", b"version https://git-lfs")  # what is saved by mistake in place of weights
MOST = 1 << 28  # bytes of a header
LEGACY = 0x1950A86A20F9469CFC6C  # the first number of a pickle that torch wrote before it wrote archives


def plain(name: str) -> str:
    """A tensor's name without the prefixes of compiled or parallel training."""
    return WRAPPED.sub("", name)


def check_whole(file: Path, what: str = "") -> None:
    """ParityError, which begins with `what` or the file, for an empty file, one that ends before its tensors do, and
    for a web page or a pointer of git-LFS in place of weights."""
    size, where = file.stat().st_size, f"{what} = {str(file)!r}" if what else str(file)
    with file.open("rb") as stream:
        start = stream.read(512)
    if not size:
        raise ParityError(f"{where}: an empty file; get it again")
    if start.lstrip().lower().startswith(PAGE):
        raise ParityError(f"{where}: a web page or a pointer and not the weights; download the file itself")
    if file.suffix in PICKLED and start.startswith(b"PK") and not zipfile.is_zipfile(file):
        raise ParityError(f"{where}: cut off: an archive without its end, {size} bytes; get it again")
    if file.suffix == ".safetensors":
        wanted = 8 + int.from_bytes(start[:8], "little")
        try:
            wanted += max([0, *(entry["data_offsets"][1] for entry in safetensors_header(file).values())])
        except (ValueError, LookupError, TypeError, AttributeError):
            if size >= wanted:
                raise ParityError(f"{where}: not a safetensors file: its header cannot be read; get it again") from None
        if size < wanted:
            raise ParityError(f"{where}: cut off: {size} bytes, where its header says {wanted}; get it again")


def safetensors_header(file: Path) -> dict[str, Any]:
    """The entry of every tensor in a safetensors file's header; ValueError for a file that has none."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MOST:
            raise ValueError("no header")
        entries = json.loads(stream.read(length))
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


class Ignored:
    """Stands for every object of a pickle that is no tensor: takes whatever it is given and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Ignored":
        return object.__new__(cls)

    def ignore(self, *args: Any, **kwargs: Any) -> None:
        """Whatever a pickle does to an object: its beginning, a call, entries, a state."""

    __init__ = __call__ = __setitem__ = __setstate__ = append = extend = add = ignore  # type: ignore[assignment]


class TensorShape(tuple[int, ...]):
    """The shape of a tensor of a pickle."""


REBUILT: dict[tuple[str, str], Callable[..., Any]] = {  # calls in a pickle that make tensors, and containers of them
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): lambda storage, offset, size, *rest: TensorShape(size),
    ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, size, *rest: TensorShape(size),
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
}


class ShapeReader(pickle.Unpickler):
    """Reads a pickle of torch's with shapes in place of tensors. Of what it calls only REBUILT exists; everything else
    is Ignored, so no code of the file or of a library runs."""

    def find_class(self, module: str, name: str) -> Any:
        return REBUILT.get((module, name), Ignored)

    def persistent_load(self, pid: Any) -> None:
        """A storage, whose numbers are not read."""


def read_content(stream: BinaryIO) -> Any:
    """The content of a pickle that torch wrote, with shapes in place of tensors; an error of any kind for another."""
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            entry = next(e for e in archive.infolist() if e.filename.endswith("data.pkl") and e.file_size <= MOST)
            with archive.open(entry) as inside:
                return ShapeReader(inside).load()
    stream.seek(0)
    if ShapeReader(stream).load() != LEGACY:
        raise ValueError("not a pickle of torch's")
    for _ in range(2):  # version, machine
        ShapeReader(stream).load()
    return ShapeReader(stream).load()


def read_groups(file: Path) -> dict[str, dict[str, Shape]]:
    """Shapes of a file's tensors by plain name, by the key that holds them: "" for those that no key holds, as in
    safetensors. {} for what is no file of tensors."""
    if file.suffix not in PICKLED:
        try:
            entries = safetensors_header(file).items()
            return {"": {plain(name): tuple(entry["shape"]) for name, entry in entries}}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}
    try:
        with file.open("rb") as stream:
            content = read_content(stream)
    except Exception:  # a reader of pickles raises what the bytes make it
        return {}
    if not isinstance(content, dict):
        return {}
    every = {"": content} | {str(key): held for key, held in content.items() if isinstance(held, dict)}
    shapes = {
        key: {plain(str(name)): tuple(shape) for name, shape in held.items() if isinstance(shape, TensorShape)}
        for key, held in every.items()
    }
    return {key: held for key, held in shapes.items() if held}


def read_tensor_shapes(file: Path) -> dict[str, Shape]:
    """Shapes by plain name of the tensors that are read of a file; {} where that cannot be known without torch."""
    held = read_groups(file)
    return held.get(next((key for key in HELD if key in held), ""), {})


def read_tensor_names(file: Path) -> Iterator[str]:
    """Plain names of all tensors in a file, whatever key holds them."""
    for held in read_groups(file).values():
        yield from held


def derive_sizes(shapes: Mapping[str, Shape], table: Mapping[str, tuple[str, int | None, int]]) -> dict[str, int]:
    """Sizes of a network by the shapes of its tensors, as far as they say them. table: of each size a tensor's name,
    the axis that has this size, and what is to be added; for the axis None the numbers behind the name are counted."""
    sizes = {}
    for key, (name, axis, more) in table.items():
        if axis is None:
            numbers = {other.removeprefix(name).split(".")[0] for other in shapes if other.startswith(name)}
            sizes[key] = len(numbers) + more
        elif name in shapes:
            sizes[key] = shapes[name][axis] + more
    return sizes
