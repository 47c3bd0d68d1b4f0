"""Files that hold results: published whole or not at all, checked when read, never pickled."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from parity_certify.files import (
    digest,
    dump_canonical,
    publish,
    read_arrays,
    read_json,
    replace_whole,
    write_arrays,
    write_json,
)

from parity.base.errors import ParityError

__all__ = [  # the certifier's functions are listed too, so that the workflow imports all functions for files from here
    "digest", "dump_canonical", "find_numbered_files", "foreign_json", "header", "publish", "read_arrays",
    "read_config_as", "read_header", "read_json", "replace_whole", "sums", "write_arrays", "write_json",
]  # fmt: skip

T = TypeVar("T")
MOST = 1 << 26  # a JSON file of more bytes is not read
LARGEST = 1 << 28  # a header of more bytes is not read


def sums(folder: Path) -> dict[str, str]:
    """Read the lines of a folder's SHA256SUMS as digests by file name; {} if it does not exist."""
    lock = folder / "SHA256SUMS"
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.exists() else []
    return {name: total for total, name in (line.split() for line in lines)}


def read_header(file: Path) -> dict[str, Any]:
    """Read the header of a safetensors file: "__metadata__", and an entry for each tensor; ValueError if it has none.
    No library does: `check_whole` and planning read headers of damaged files, too, and import none."""
    with file.open("rb") as stream:
        if (length := int.from_bytes(stream.read(8), "little")) > LARGEST:
            raise ValueError("no header")
        return json.loads(stream.read(length))


def header(file: Path) -> dict[str, Any]:
    """Read the configuration in the header of one of our safetensors files; {} if it has none, or does not exist."""
    try:
        return json.loads(read_header(file)["__metadata__"]["config"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def read_config_as(kind: type[T], file: Path, ignored: tuple[str, ...] = ()) -> T:
    """Read a network's sizes from the header of its file and make `kind`, a dataclass, of them, without the `ignored`
    keys. Raises ParityError if the header has no sizes, lacks one, or has one that `kind` does not have."""
    sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in header(file).items() if k not in ignored}
    if not sizes:
        raise ParityError(f"{file}: says nothing of its sizes; allowed: a file that a recipe or `convert` wrote")
    if unknown := sorted(set(sizes) - {f.name for f in fields(kind)}):  # type: ignore[arg-type]
        raise ParityError(f"{file}: its configuration names {', '.join(unknown)}, which {kind.__name__} does not have")
    try:
        return kind(**sizes)
    except TypeError as error:
        raise ParityError(f"{file}: its configuration is not whole: {error}") from None


def find_numbered_files(name: Path) -> list[Path]:
    """Find the files that a name with a star stands for ("*-of-2.npz": 0-of-2.npz, 1-of-2.npz), by number; a name
    without a star is itself. Raises ParityError unless the numbers are 0 to n - 1, where n stands after "-of-"."""
    prefix, star, rest = name.name.partition("*")
    if not star:
        return [name]
    pattern = re.compile(rf"{re.escape(prefix)}([0-9]+){re.escape(rest)}")
    files = {int(m[1]): file for file in name.parent.glob("*") if (m := pattern.fullmatch(file.name))}
    total = re.match(r"-of-([0-9]+)\.", rest)
    n = int(total[1]) if total else len(files)
    if not files or sorted(files) != list(range(n)):
        raise ParityError(f"{name}: {len(files)} files; allowed: numbered from 0 without a gap, {n or 'one or more'}")
    return [files[k] for k in range(n)]


def foreign_json(file: Path) -> Any:
    """Read a published JSON file. Raises FileNotFoundError if there is no regular file; ParityError if it is larger
    than MOST or not JSON."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    if (size := file.stat().st_size) > MOST:
        raise ParityError(f"{file}: {size} bytes; allowed: at most {MOST}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParityError(f"{file}: not JSON: {str(error).splitlines()[0][:120]}") from None
