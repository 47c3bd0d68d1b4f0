"""Files that hold results: published whole or not at all, checked when read, never pickled."""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from parity.base.errors import ParityError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
MOST = 1 << 26  # bytes of JSON, in a file of its own or in a header
SEAL, MARK = "checksum", "sha256:"  # of a sealed file: the seal's key, and how its value begins
INSIDE = "entries"  # the key of what is sealed, where that is no JSON object


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file to be written, which then takes the place of `path`: a reader sees the old one, none, or all of
    the new one. Who may read it is for the umask to say, whoever wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.{os.urandom(4).hex()}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    allowed = part.stat().st_mode & 0o777
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(part, allowed)  # what wrote it may have made a file of its own
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def publish(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one, none, or all of the new one: temporary file, fsync, replace."""
    with whole(path) as part:
        part.write_bytes(data)


def sums(folder: Path) -> dict[str, str]:
    """File name to SHA-256 of a folder's weights, from its SHA256SUMS; {} where there is none yet."""
    lock = folder / "SHA256SUMS"
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.exists() else []
    return {name: total for total, name in (line.split() for line in lines)}


def check_sums(folder: Path) -> None:
    """ParityError for a file that is not what the folder's SHA256SUMS says; one that is missing will be made."""
    for name, total in sums(folder).items():
        file = folder / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != total:
            raise ParityError(f"{file}: damaged (it is not as it was made); delete it and run again")


def header(file: Path) -> dict[str, Any]:
    """The configuration in the header of a safetensors file of ours; {} if it has none, or there is no such file."""
    try:
        with file.open("rb") as stream:
            if (length := int.from_bytes(stream.read(8), "little")) > MOST:
                return {}
            text = stream.read(length)
        return json.loads(json.loads(text)["__metadata__"]["config"])
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError):
        return {}


def configured(kind: type[T], file: Path, ignored: tuple[str, ...] = ()) -> T:
    """A network's sizes, the dataclass `kind`, from a file's header; what is `ignored` there is no part of them.

    ParityError for a file that says nothing of its sizes, or something that `kind` does not have.
    """
    said = {k: tuple(v) if isinstance(v, list) else v for k, v in header(file).items() if k not in ignored}
    if not said:
        raise ParityError(f"{file}: says nothing of its sizes; allowed: a file that a recipe or `convert` wrote")
    if unknown := sorted(set(said) - {f.name for f in fields(kind)}):  # type: ignore[arg-type]
        raise ParityError(f"{file}: its configuration names {', '.join(unknown)}, which {kind.__name__} does not have")
    try:
        return kind(**said)
    except TypeError as error:
        raise ParityError(f"{file}: its configuration is not whole: {error}") from None


def apart(name: Path) -> list[Path]:
    """The files of a folder that "*-of-2.npz" stands for, by their number; a name without a star is itself.

    ParityError unless they are numbered from 0 without a gap, and are as many as they say.
    """
    before, star, rest = name.name.partition("*")
    if not star:
        return [name]
    wanted = re.compile(rf"{re.escape(before)}([0-9]+){re.escape(rest)}")
    found = {int(m[1]): file for file in name.parent.glob("*") if (m := wanted.fullmatch(file.name))}
    said = re.match(r"-of-([0-9]+)\.", rest)
    n = int(said[1]) if said else len(found)
    if not found or sorted(found) != list(range(n)):
        raise ParityError(f"{name}: {len(found)} files; allowed: numbered from 0 without a gap, {n or 'one or more'}")
    return [found[k] for k in range(n)]


def canonical(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """The key of a specification: the first 8 hex digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


def write_json(path: Path, value: Any) -> None:
    publish(path, (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())


def write_result(path: Path, value: Any) -> None:
    """JSON that later jobs read: sealed, so that `read_json` knows it for what was written."""
    write_json(path, sealed(value))


def sealed(value: Any) -> dict[str, Any]:
    """A JSON object with its checksum; of anything else than an object one that holds it."""
    plain = json.loads(canonical(value if isinstance(value, dict) else {INSIDE: value}))
    return {**plain, SEAL: seal(plain)}


def foreign_json(file: Path) -> Any:
    """What somebody else's file of JSON says. FileNotFoundError where no regular file is; ParityError for one that is
    larger than MOST, or holds no JSON."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    if (size := file.stat().st_size) > MOST:
        raise ParityError(f"{file}: {size} bytes; allowed: at most {MOST}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParityError(f"{file}: not JSON: {str(error).splitlines()[0][:120]}") from None


def seal(value: dict[str, Any]) -> str:
    return MARK + hashlib.sha256(canonical(value).encode()).hexdigest()


def read_json(path: Path) -> Any:
    """ParityError that names the file if it is no JSON, or is sealed and holds something else than was written.

    Its name or its value tells a seal, so a bit that is another in either is noticed too.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from None
    if isinstance(said, dict) and (SEAL in said or any(str(v).startswith(MARK) for v in said.values())):
        if said.pop(SEAL, "") != seal(said):
            raise ParityError(f"{path}: damaged (its checksum is another); delete it and run again")
        return said[INSIDE] if set(said) == {INSIDE} else said
    return said


def write_arrays(path: Path, **arrays: "np.ndarray") -> None:
    """An .npz, compressed; every member carries zip's CRC, which `read_arrays` checks."""
    import numpy as np

    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    publish(path, stream.getvalue())


def read_arrays(path: Path) -> "dict[str, np.ndarray]":
    """All arrays of an .npz; ParityError that names the file if it is not whole."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as data:
            return {k: data[k] for k in data.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged zip raises a dozen kinds (zlib, struct, zipfile, numpy, unicode ...)
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from error
