"""What files of weights hold, without their numbers: names and shapes of tensors, and whether a file is whole. Needs no
torch, and nothing of a file is executed."""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from parity.base.errors import ParityError
from parity.base.files import LARGEST, read_header

Shape = tuple[int, ...]
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
HELD = ("model_ema", "model", "module", "state_dict")  # the first of these keys that a pickle has holds its tensors
WRAPPED = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module)\.|^module\.")  # torch.compile, FSDP, DDP add it
PAGE = (b"<!doctype", b"<html", b"version https://git-lfs")  # files that people save in place of weights begin so
LEGACY = 0x1950A86A20F9469CFC6C  # a file that torch.save wrote in its older format begins with this number, pickled


def strip_wrappers(name: str) -> str:
    """Strip the prefixes of compiled or parallel training from a tensor's name."""
    return WRAPPED.sub("", name)


def check_whole(file: Path) -> None:
    """Raise ParityError if a file of weights is empty, shorter than its header says, no safetensors file despite its
    name, or a web page or a pointer of git-LFS saved in its place."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(512)
    if not size:
        raise ParityError(f"{file}: an empty file; get it again")
    if start.lstrip().lower().startswith(PAGE):
        raise ParityError(f"{file}: a web page or a pointer and not the weights; download the file itself")
    if file.suffix in PICKLED and start.startswith(b"PK") and not zipfile.is_zipfile(file):
        raise ParityError(f"{file}: cut off: an archive without its end, {size} bytes; get it again")
    if file.suffix == ".safetensors":
        expected = 8 + int.from_bytes(start[:8], "little")
        try:
            expected += max([0, *(entry["data_offsets"][1] for entry in read_entries(file).values())])
        except (ValueError, LookupError, TypeError, AttributeError):
            if size >= expected:
                raise ParityError(f"{file}: not a safetensors file: its header cannot be read; get it again") from None
        if size < expected:
            raise ParityError(f"{file}: cut off: {size} bytes, where its header says {expected}; get it again")


def read_entries(file: Path) -> dict[str, Any]:
    """Read the entry (dtype, shape, data_offsets) of each tensor in a safetensors header; ValueError if it has none."""
    return {name: entry for name, entry in read_header(file).items() if name != "__metadata__"}


def find_largest_dtype(files: Path) -> str:
    """Find the dtype, as safetensors names it, that takes most bytes of a file or of a folder's files; "" if none of
    them is a safetensors file."""
    counts: dict[str, int] = {}
    for file in sorted(files.rglob("*.safetensors")) if files.is_dir() else [files]:
        try:
            for entry in read_entries(file).values() if file.suffix == ".safetensors" else ():
                begin, end = entry["data_offsets"]
                counts[entry["dtype"]] = counts.get(entry["dtype"], 0) + end - begin
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return max(counts, key=lambda dtype: counts[dtype], default="")


class Ignored:
    """Stands for every object of a pickle that is no tensor: takes whatever it is given and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Ignored":
        return object.__new__(cls)

    def ignore(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, whatever a pickle does to an object: its creation, a call, entries, a state."""

    __init__ = __call__ = __setitem__ = __setstate__ = append = extend = add = ignore  # type: ignore[assignment]


class TensorShape(tuple[int, ...]):
    """The shape of a tensor of a pickle."""


# of the calls in a pickle only these are answered, which make tensors and dictionaries of them
REBUILT: dict[tuple[str, str], Callable[..., Any]] = {
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
        """Skip a storage, whose numbers are not read."""


def read_content(stream: BinaryIO) -> Any:
    """Unpickle the content of a file that torch.save wrote, as an archive or in the older format, with shapes in place
    of tensors. Raises errors of any kind for another file."""
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            entry = next(e for e in archive.infolist() if e.filename.endswith("data.pkl") and e.file_size <= LARGEST)
            with archive.open(entry) as stream_inside:
                return ShapeReader(stream_inside).load()
    stream.seek(0)
    if ShapeReader(stream).load() != LEGACY:
        raise ValueError("not a pickle of torch's")
    for _ in range(2):  # skip two objects, the format's version and the machine it was written on
        ShapeReader(stream).load()
    return ShapeReader(stream).load()


def read_groups(file: Path) -> dict[str, dict[str, Shape]]:
    """Read the shapes of a file's tensors by plain name (`strip_wrappers`), grouped by the key of the pickle that holds
    them: "" for those outside any, as in safetensors. {} if it is no file of tensors."""
    if file.suffix not in PICKLED:
        try:
            entries = read_entries(file).items()
            return {"": {strip_wrappers(name): tuple(entry["shape"]) for name, entry in entries}}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}
    try:
        with file.open("rb") as stream:
            content = read_content(stream)
    except Exception:  # damaged pickles raise errors of any kind
        return {}
    if not isinstance(content, dict):
        return {}
    tables = {"": content} | {str(key): value for key, value in content.items() if isinstance(value, dict)}
    shapes = {
        key: {
            strip_wrappers(str(name)): tuple(shape) for name, shape in table.items() if isinstance(shape, TensorShape)
        }
        for key, table in tables.items()
    }
    return {key: named for key, named in shapes.items() if named}


def read_tensor_shapes(file: Path) -> dict[str, Shape]:
    """Read the shapes, by plain name, of the tensors that loading a file would take: those under the first key of HELD
    that it has, else those under no key. {} if it is no file of tensors."""
    groups = read_groups(file)
    return groups.get(next((key for key in HELD if key in groups), ""), {})


def read_tensor_names(file: Path) -> Iterator[str]:
    """Yield the plain names of all tensors in a file, whatever key holds them."""
    for shapes in read_groups(file).values():
        yield from shapes


def derive_sizes(shapes: Mapping[str, Shape], table: Mapping[str, tuple[str, int | None, int]]) -> dict[str, int]:
    """Derive sizes of a network from the shapes of its tensors, by name; a size whose tensor is missing is left out.

    table: for each size a tensor's name, the axis that has this size, and a number to add. For the axis None the size
    is how many different numbers (of layers) follow the name, a prefix.
    """
    sizes = {}
    for key, (name, axis, added) in table.items():
        if axis is None:
            numbers = {tensor.removeprefix(name).split(".")[0] for tensor in shapes if tensor.startswith(name)}
            sizes[key] = len(numbers) + added
        elif name in shapes:
            sizes[key] = shapes[name][axis] + added
    return sizes
