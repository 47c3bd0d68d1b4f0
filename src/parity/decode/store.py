"""The store of whole shards: what was decoded once is not decoded again.

A shard is the unit of recovery. It is kept under a digest of all that its bytes depend on (specification, sources,
inputs), the time they took aside, and a job looks there first: a killed run loses the shards in flight alone, and an
option changed and changed back decodes nothing twice.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.files import canonical


def shard_file(store: Path, kind: str, spec: dict[str, Any], code: str, rows: dict[str, np.ndarray]) -> Path:
    """Where the store keeps the shard of these rows."""
    whole = hashlib.sha256(canonical([kind, spec, code]).encode())
    for name, column in sorted(rows.items()):
        whole.update(f"{name} {column.dtype} {column.shape}\n".encode())
        whole.update(np.ascontiguousarray(column).tobytes())
    return store / f"{whole.hexdigest()[:24]}.npz"


@contextlib.contextmanager
def lock_shard(kept: Path) -> Iterator[None]:
    """Hold a shard's place while it is decoded: whoever wants the same one waits, and finds it. So jobs that a killed
    run left at work are not joined by others at the same. A byte of one file is the lock, the process's end ends it;
    where a file system has no locks, a shard may be decoded twice, and is the same."""
    lock = kept.parent.with_name(f".{kept.parent.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, int(kept.stem[:15], 16))
        yield


def link(source: Path, out: Path) -> None:
    """Put a stored file in its place, whole: a hard link where the file system has them (a copy would do as well)."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        part = Path(folder) / out.name
        try:
            os.link(source, part)
        except OSError:
            part.write_bytes(source.read_bytes())
        part.replace(out)
