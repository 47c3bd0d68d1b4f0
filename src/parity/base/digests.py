"""Files of weights by their SHA-256: which files count, their digest, and whether it is the expected one."""

import fnmatch
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from parity.base.errors import ParityError
from parity.base.files import foreign_json, publish

KINDS = ("*.safetensors", "pytorch_model*.bin")  # of a folder's weights: the first kind that is there
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
LARGE = 1 << 22  # bytes from which on a digest is remembered
SETTLED = 2 * 10**9  # nanoseconds since the last write, before which a file's time may not show its next change


def weights_among(names: Iterable[str]) -> list[str]:
    """Of the names of a folder's files, those of its weights, in order; [] where there are none."""
    every = sorted(names)
    return next((found for kind in KINDS if (found := fnmatch.filter(every, kind))), [])


def parts(path: Path) -> list[Path]:
    """Files of weights, in order of name: a file itself, or those of a folder. ParityError if there are none, or if a
    folder's index names one that is missing."""
    if path.is_file():
        return [path]
    names = weights_among(file.name for file in path.iterdir()) if path.is_dir() else []
    if not names:
        problem = "holds no *.safetensors" if path.is_dir() else "no such file"
        raise ParityError(
            f"{path}: {problem}; allowed: a file of weights, or a folder of *.safetensors or pytorch_model*.bin"
        )
    index = path / INDICES[names[0].endswith(".bin")]
    try:
        indexed = set(foreign_json(index)["weight_map"].values()) if index.is_file() else set()
        missing = sorted(indexed - set(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ParityError(f"{index}: not an index of shards; get it again") from None
    if missing:
        raise ParityError(
            f"{path}: half a checkpoint: its index names {len(indexed)} files, {len(missing)} of them missing, such as"
            f" {missing[0]}; get them again"
        )
    return [path / name for name in names]


def sha256(path: Path) -> str:
    """The digest of a file; of a folder, that of its weights' digests (`of_several`)."""
    files = parts(path)
    return of_several({file.name: of_file(file) for file in files}) if path.is_dir() else of_file(path)


def of_several(digests: Mapping[str, str]) -> str:
    """The digest of several files, from the digest of each by name: that of the lines that `sha256sum` prints. So the
    digests that a hub lists for files give a folder's."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def of_file(file: Path) -> str:
    """The digest of a file; a large file is read again only after a change."""
    remembered = memory_of(file)
    if remembered.is_file() and len(text := remembered.read_text(encoding="utf-8")) == 64:
        return text
    with file.open("rb") as stream:
        total = hashlib.file_digest(stream, "sha256").hexdigest()
    status = file.stat()
    settled = time.time_ns() - status.st_mtime_ns > SETTLED and memory_of(file) == remembered
    if status.st_size >= LARGE and settled:
        with suppress(OSError):  # where nothing can be written, nothing is remembered
            publish(remembered, total.encode())
    return total


def memory_of(file: Path) -> Path:
    """Where the digest of a file is remembered, by its path, size, time and number."""
    status = file.stat()
    stamp = [[str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "parity/digests" / hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:32]


def check(path: Path, expected: str, what: str) -> None:
    """ParityError that begins with `what` unless a file, or folder, has this digest."""
    if not path.exists():
        raise ParityError(f"{what} = {str(path)!r}: no such file")
    if (total := sha256(path)) != expected:
        raise ParityError(
            f"{what} = {str(path)!r}: SHA-256 is {total[:16]}..., expected {expected[:16]}...;"
            " delete the file and get it again"
        )
