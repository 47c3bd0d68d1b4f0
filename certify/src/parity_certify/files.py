"""Files that hold results: published whole or not at all, checked when read, never pickled."""

import hashlib
import io
import json
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity_certify.errors import ParityError

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def replace_whole(path: Path) -> Iterator[Path]:
    """Context manager: yield a temporary file to write, then replace `path` by it, so that a reader sees whole files
    only. After an error `path` is as before. Makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        temporary.touch()
        permissions = temporary.stat().st_mode & 0o777
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, permissions)  # some writers replace the file by one that only its owner may read
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), temporary):
            error.filename = str(path)  # an error of a full disk names no file, others the temporary one
        raise


def publish(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, with its folders."""
    with replace_whole(path) as temporary:
        temporary.write_bytes(data)


def dump_canonical(value: Any) -> str:
    """Write a value as JSON that is the same text for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """Digest a specification to its key, the first 8 hex digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(dump_canonical(value).encode()).hexdigest()[:8]


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys, whole or not at all."""
    publish(path, (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ParityError that names the file if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from None


def write_arrays(path: Path, **arrays: "np.ndarray") -> None:
    """Write arrays to a compressed .npz, whose members carry zip's CRC, which `read_arrays` checks."""
    import numpy as np

    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    publish(path, stream.getvalue())


def read_arrays(path: Path, only: Container[str] | None = None) -> "dict[str, np.ndarray]":
    """Read all arrays of an .npz, or those whose names are in `only`. Raises ParityError that names the file if it is
    damaged."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as data:
            return {k: data[k] for k in data.files if only is None or k in only}
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged zip raises a dozen kinds (zlib, struct, zipfile, numpy, unicode ...)
        raise ParityError(f"{path}: damaged ({error}); delete it and run again") from error
