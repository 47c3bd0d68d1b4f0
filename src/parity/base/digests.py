"""Files of weights by their SHA-256: which files count, what they hash to, and whether that is what was said."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from parity.base.errors import ParityError
from parity.base.files import foreign_json, publish

KINDS = ("*.safetensors", "pytorch_model*.bin")  # of a folder's weights: the first kind that is there
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
LARGE = 1 << 26  # bytes from which on a digest is remembered
SETTLED = 2 * 10**9  # nanoseconds since a file was last written, before which its time may not tell two contents apart


def parts(path: Path) -> list[Path]:
    """Files of weights: a file itself, or a folder's *.safetensors, or else its pytorch_model*.bin, in order of name.

    ParityError if there are none, or if a folder's index names one that is missing.
    """
    found = [sorted(path.glob(kind)) for kind in KINDS] if path.is_dir() else [[path]] if path.is_file() else []
    files = next((some for some in found if some), [])
    if not files:
        lacks = "holds no *.safetensors" if path.is_dir() else "no such file"
        raise ParityError(
            f"{path}: {lacks}; allowed: a file of weights, or a folder of *.safetensors or pytorch_model*.bin"
        )
    if path.is_dir():
        check_index(path, files)
    return files


def check_index(folder: Path, files: list[Path]) -> None:
    """ParityError for a shard that a folder's index names and that is not among its files."""
    index = folder / INDICES[files[0].suffix == ".bin"]
    if not index.is_file():
        return
    try:
        named = set(foreign_json(index)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ParityError(f"{index}: not an index of shards; get it again") from None
    if missing := sorted(map(str, named - {f.name for f in files})):
        raise ParityError(
            f"{folder}: half a checkpoint: its index names {len(named)} files, {len(missing)} of them missing, such as"
            f" {missing[0]}; get them again"
        )


def sha256(path: Path) -> str:
    """Of a file; of a folder, that of its weights' digests (`of_several`)."""
    files = parts(path)
    return of_several({file.name: of_file(file) for file in files}) if path.is_dir() else of_file(path)


def of_several(known: Mapping[str, str]) -> str:
    """Of files by name, from the digest of each: of the lines that `sha256sum` prints, in order of name. So a hub that
    tells digests of files tells a folder's."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def of_file(file: Path) -> str:
    """Of a file; a large one is read once, as long as it stays as it is."""
    known = remembered([file])
    if known.is_file() and len(text := known.read_text(encoding="utf-8")) == 64:
        return text
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            total.update(block)
    status = file.stat()
    if status.st_size >= LARGE and time.time_ns() - status.st_mtime_ns > SETTLED:
        remember(known, remembered([file]), total.hexdigest())
    return total.hexdigest()


def remembered(files: list[Path]) -> Path:
    """Where the digest of files is kept, as they are now: path, size, time and number of each."""
    stamps = [[str(f.resolve()), s.st_size, s.st_mtime_ns, s.st_ino] for f in files for s in [f.stat()]]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "parity/digests" / hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:32]


def remember(before: Path, after: Path, digest: str) -> None:
    """Keep a digest of files that did not change while they were read; where nothing can be written, it is not kept."""
    if before == after:
        try:
            publish(after, digest.encode())
        except OSError:
            return


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
