"""Files of weights by their SHA-256: which files count, their digest, and whether it is the expected one."""

import fnmatch
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.files import foreign_json, publish, read_json
from parity.base.headers import PICKLED, read_tensor_names
from parity.base.text_files import describe_missing

# The first of these formats that a folder has is read. Its file names match the key; the names listed hold everything.
KINDS = {
    "*.safetensors": ("open_clip_model.safetensors", "model.safetensors"),
    "pytorch_model*.bin": ("pytorch_model.bin",),
}
INDEX = ".index.json"  # a file whose name ends so lists which shard holds which tensor
SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.\w+")
# this matches a folder in the Hugging Face cache, where repositories often hold the same weights in two formats
CACHED = re.compile(r"/models--[^/]+/snapshots/[0-9a-f]{40}(/|$)")
LARGE = 1 << 22  # the digest of a file of this many bytes (4 MiB) or more is cached
SETTLED = 2 * 10**9  # a file written fewer nanoseconds ago may change again without a new modification time


def select_weights(names: Iterable[str], indexed: Callable[[str], set[str]]) -> list[str]:
    """Select the files of weights among the names of a folder's files, in order; [] if there are none. They are of the
    first format of KINDS that is present: the files that its index names, or the one file that holds everything, or all
    numbered shards, or the only file. Raises ParityError for missing shards, and if the names leave open which files to
    read.

    indexed: a function from the name of an index to the set of files that it names.
    """
    names = sorted(names)
    for kind, whole_files in KINDS.items():
        whole_file = next((name for name in whole_files if name in names), "")
        files, indices = fnmatch.filter(names, kind), fnmatch.filter(names, kind + INDEX)
        if len(indices) > 1:
            raise ParityError(f"two indices of weights, {indices[0]} and {indices[1]}; allowed: one")
        if indices:
            indexed_files = sorted(indexed(indices[0]))
            if missing := [name for name in indexed_files if name not in names]:
                raise ParityError(
                    f"half a checkpoint: its index names {len(indexed_files)} files, {len(missing)} of them missing,"
                    f" such as {missing[0]}; get them again"
                )
            if whole_file and whole_file not in indexed_files:
                raise ParityError(f"both {whole_file} and {indices[0]}, which does not name it; allowed: one")
            return indexed_files
        if whole_file:
            return [whole_file]
        shards = [name for name in files if SHARD.fullmatch(name)]
        if shards:
            check_shards(shards)
            return shards
        if len(files) > 1:
            raise ParityError(f"both {files[0]} and {files[1]}, and no index that names its weights; allowed: one")
        if files:
            return files
    return []


def check_shards(names: list[str]) -> None:
    """Raise ParityError unless the names, "<name>-<k>-of-<n>", are all n shards of one network, from 0 or from 1."""
    counted = [match for name in names if (match := SHARD.fullmatch(name))]
    first = counted[0]
    n = int(counted[0][3])
    if stranger := next((match[0] for match in counted if (match[1], int(match[3])) != (first[1], n)), ""):
        raise ParityError(f"both {names[0]} and {stranger}, shards of two networks; allowed: those of one")
    if sorted(int(match[2]) for match in counted) not in ([*range(1, n + 1)], [*range(n)]):
        raise ParityError(f"half a checkpoint: {len(counted)} of {n} shards, such as {names[0]}; get them again")


def read_index(file: Path) -> set[str]:
    """Read the file names in an index of shards, `*.index.json`. Raises ParityError if the file is no such index."""
    try:
        return {str(name) for name in foreign_json(file)["weight_map"].values()}
    except (OSError, ParityError, LookupError, TypeError, AttributeError):
        raise ParityError(f"{file}: not an index of shards; get it again") from None


def parts(path: Path) -> list[Path]:
    """List the paths of the files of weights at a path: a file itself, or those in a folder (`select_weights`). Raises
    ParityError if there are none, for a link to nothing, or if another file of the folder holds one of their tensors
    too."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ParityError(
            f"{path}: {describe_missing(path)}; allowed: a file of weights, or a folder of {' or '.join(KINDS)}"
        )
    for file in path.iterdir():
        check_link(file)
    all_names = sorted(file.name for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    try:
        names = select_weights(all_names, lambda index: read_index(path / index))
    except ParityError as error:
        raise error if str(path) in str(error) else ParityError(f"{path}: {error}") from None
    if not names:
        raise ParityError(f"{path}: holds no {' or '.join(KINDS)}; allowed: a file of weights, or a folder of them")
    check_alone(path, names, [] if CACHED.search(path.absolute().as_posix()) else all_names)
    return [path / name for name in names]


def check_link(file: Path) -> None:
    """Raise ParityError if weights, their index or a config.json are a link to nothing, which would be left out."""
    if not file.exists() and (file.suffix in (".safetensors", *PICKLED) or file.name.endswith((INDEX, "config.json"))):
        raise ParityError(f"{file}: {describe_missing(file)}, or remove the link")


def check_alone(folder: Path, names: list[str], all_names: Iterable[str]) -> None:
    """Raise ParityError if two files of `names`, a folder's weights, hold the same tensor, or if another file of
    `all_names` holds more than half of the tensors of one of them. Only the names of tensors are compared."""
    other_names = [name for name in all_names if name not in names and name.endswith((".safetensors", *PICKLED))]
    if len(names) + len(other_names) == 1:
        return
    tensors_of = {name: set(read_tensor_names(folder / name)) for name in (*names, *other_names)}
    for first, second in itertools.combinations(tensors_of, 2):
        shared = tensors_of[first] & tensors_of[second]
        if (
            first in names
            and shared
            and (second in names or 2 * len(shared) > min(len(tensors_of[first]), len(tensors_of[second])))
        ):
            raise ParityError(
                f"{folder}: {second} holds tensors that {first} holds too, such as {min(shared)}; allowed: one file of"
                " a tensor; move the other out of the folder"
            )


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, or of a folder from those of its files of weights (`combine_digests`)."""
    files = parts(path)
    return combine_digests({file.name: digest_file(file) for file in files}) if path.is_dir() else digest_file(path)


def combine_digests(digests: Mapping[str, str]) -> str:
    """Combine the SHA-256 of several files, by name, to one: that of the lines `sha256sum` prints for them. So a
    folder's digest follows from those that a hub lists for its files."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_file(file: Path) -> str:
    """Compute the SHA-256 of a file. A large file's is cached in the user's cache folder until the file changes."""

    def compute() -> str:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    return recall_digest([file], compute) if file.stat().st_size >= LARGE else compute()


def digest_contents(files: Sequence[Path]) -> str:
    """Compute a digest of names and contents of files, as `combine_digests` does. It is cached in the user's cache
    folder until one of the files changes, so that many small files are read once."""
    return recall_digest(files, lambda: combine_digests({file.name: digest_file(file) for file in files}))


def recall_digest(files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return the digest of files that is cached, or compute it and cache it until one of the files changes."""
    remembered = find_cached_digest(*files)
    if remembered.is_file() and len(text := remembered.read_text(encoding="utf-8")) == 64:
        return text
    total = compute()
    changed = max((file.stat().st_mtime_ns for file in files), default=0)
    if time.time_ns() - changed > SETTLED and find_cached_digest(*files) == remembered:
        with suppress(OSError):  # if the cache cannot be written, the digest is computed again next time
            publish(remembered, total.encode())
    return total


def find_cached_digest(*files: Path) -> Path:
    """Return the path where a digest of files is cached; its name depends on each file's path, size, times of change,
    and inode."""
    stamp = []
    for file in files:
        status = file.stat()
        stamp += [str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "parity/digests" / hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:32]


def list_verified(key: str, paths: Mapping[str, Path], digests: Mapping[str, str]) -> list[list[str]]:
    """List key, path and SHA-256 of each component that has a digest, for a manifest's "verified"."""
    return [[f"{key}.{name}", str(path), digests[name]] for name, path in paths.items() if digests.get(name)]


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest that `models.fetch` made, and check that none of its files was replaced under its path since
    then, which a job that follows would read and earlier ones did not. Digests of large files are cached, so that this
    takes no time as long as size, times and inode are as before.

    Raises ParityError that names the file, its digest then and now, and what to do.
    """
    manifest: dict[str, Any] = read_json(file)
    for key, path, expected in manifest.get("verified", ()):
        if Path(path).exists() and (total := sha256(Path(path))) != expected:
            raise ParityError(
                f"{key} = {path!r}: the file was replaced: its SHA-256 is {total}, and was {expected} when {file} was"
                " written; put the former file back, or name the digest of the new one (sha256), with which all is made"
                " anew"
            )
    return manifest


def check(path: Path, expected: str, label: str) -> None:
    """Raise ParityError that begins with `label` unless a file or folder exists and has the SHA-256 `expected`."""
    if not path.exists():
        raise ParityError(f"{label} = {str(path)!r}: {describe_missing(path)}")
    if (total := sha256(path)) != expected:
        raise ParityError(
            f"{label} = {str(path)!r}: SHA-256 is {total[:16]}..., expected {expected[:16]}...;"
            " delete the file and get it again"
        )
