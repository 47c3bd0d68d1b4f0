"""Shards: the tokens and records of decoded rows, an .npz with a column each.

Of every kind of model
    ids              [n] str: what keys a row's noise
    tokens           [n, L], or [n, L, D] where they are continuous
    step             [n, L] int16: the step in which a token became final; 0 for known and forced ones
    seconds          [n] wall time of decoding the row's batch, or, where rows are refilled, all of the shard's rows
    network_seconds  [n] of these, those of the networks, NaN where passes were captured, whose parts are not timed
    batch            [n] rows in that time
    at_once          [n] rows decoded at once
    passes           [n] passes of the target over that batch, one after another
    draft_calls      [n] calls of the target's speculator (a drafter, a draft model) over that batch, likewise
    draft_tokens     [n] tokens that these evaluate for a row; of vectors, for all rows
    provenance       device, versions, specification, code, parameters of each network, whether passes were captured; of
                     tokens made elsewhere what their makers say of them, and what they lack
and what `columns` of `parity.decode.<kind>` adds.

The store (`results/store`) holds whole shards under a digest of all that their bytes depend on, times aside:
specification, sources, inputs. A job looks there first, so a killed run loses only the shards in flight, an option
changed and changed back decodes nothing twice, and a damaged shard is decoded again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import dump_canonical, publish, read_arrays, write_arrays

TIMES = ("seconds", "network_seconds")
NEEDED = ("ids", "tokens", "step", *TIMES, "batch", "at_once", "passes", "draft_calls", "draft_tokens")


@dataclass
class Shard:
    """Columns of decoded rows, each also an attribute, and how they were obtained."""

    columns: dict[str, np.ndarray]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def is_made(self) -> bool:
        """Return whether the rows were made elsewhere (`parity.decode.made`)."""
        return "made" in self.provenance

    def lacks(self, name: str) -> bool:
        """Return whether nothing is known of a column of rows that were made elsewhere."""
        return name in self.provenance.get("lacks", ())

    def __getattr__(self, name: str) -> Any:
        """Return the column of this name. Raises AttributeError if the shard has none."""
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(f"shard: no column {name}") from None


def write_shard(path: Path, columns: dict[str, np.ndarray], provenance: dict[str, Any]) -> None:
    write_arrays(path, provenance=np.array(dump_canonical(provenance)), **columns)


def read_shard(path: Path) -> Shard:
    """Read a shard with its provenance. Raises ParityError that names the file if it is damaged or lacks a column."""
    columns = read_arrays(path)
    if missing := sorted({*NEEDED, "provenance"} - set(columns)):
        raise ParityError(f"{path}: damaged (no {', '.join(missing)}); delete it and run again")
    return Shard(columns, json.loads(str(columns.pop("provenance"))))


def is_whole(path: Path) -> bool:
    """Return whether a shard exists and can be read whole: its checksums hold and it has all columns."""
    try:
        read_shard(path)
    except (FileNotFoundError, ParityError):
        return False
    return True


def join(pieces: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join end to end, by name, the columns that all pieces have; those [n, W] of different W are padded with zeros."""
    joined = {}
    for name in (name for name in pieces[0] if all(name in piece for piece in pieces)):
        each = [p[name] for p in pieces]
        if each[0].ndim == 2:
            width = max(x.shape[1] for x in each)
            each = [np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in each]
        joined[name] = np.concatenate(each)
    return joined


def read_shards(paths: Iterable[Path]) -> Shard:
    """Read shards of one cell and join them in the order given. The provenance is the first one's."""
    shards = [read_shard(p) for p in paths]
    return Shard(join([s.columns for s in shards]), shards[0].provenance)


def read_columns(paths: Iterable[Path], names: Container[str]) -> dict[str, np.ndarray]:
    """Read some columns of the shards of one cell, joined in the order given; one that they lack is left out."""
    return join([read_arrays(p, names) for p in paths])


def read_provenance(path: Path) -> dict[str, Any]:
    """Read how the rows of a shard were obtained, and none of its columns."""
    return json.loads(str(read_arrays(path, ("provenance",))["provenance"]))


def read_rows(path: Path) -> dict[str, np.ndarray]:
    """Read the columns that rows are decoded from, `ids` among them, from an input file; its scalars, which concern all
    rows, are left out."""
    return {k: v for k, v in read_arrays(path).items() if v.ndim}


def rows_of(paths: Iterable[Path], shard: Shard) -> dict[str, np.ndarray]:
    """Read a cell's input files, joined. Raises ParityError unless their ids are those of `shard`, in its order."""
    rows = join([read_rows(p) for p in paths])
    if not np.array_equal(rows["ids"], shard.ids):
        first = f"first: {rows['ids'][0]} against {shard.ids[0]}"
        raise ParityError(f"inputs: their ids are not the samples' ({first}); run the cell again")
    return rows


def shard_file(store: Path, kind: str, spec: dict[str, Any], code: str, rows: dict[str, np.ndarray]) -> Path:
    """Return the path in the store of the shard of these rows, named by a digest of kind, specification, digest `code`
    of the sources, and the rows' columns."""
    key = hashlib.sha256(dump_canonical([kind, spec, code]).encode())
    for name, column in sorted(rows.items()):
        key.update(f"{name} {column.dtype} {column.shape}\n".encode())
        key.update(np.ascontiguousarray(column).tobytes())
    return store / f"{key.hexdigest()[:24]}.npz"


@contextlib.contextmanager
def lock_shard(stored: Path) -> Iterator[None]:
    """Context manager: lock a shard of the store while it is decoded. A job that wants the same one, such as one that
    survived a killed run, waits and then finds it. The lock is a byte of one file beside the store and ends with its
    process. On a file system without locks a shard may be decoded twice, with the same result."""
    lock = stored.parent.with_name(f".{stored.parent.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, int(stored.stem[:15], 16))
        yield


def link(source: Path, out: Path) -> None:
    """Put a stored file at `out`, replacing any file there at once: a hard link, or a copy where that fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        linked = Path(folder) / out.name
        try:
            os.link(source, linked)
        except OSError:
            publish(out, source.read_bytes())
        else:
            linked.replace(out)
