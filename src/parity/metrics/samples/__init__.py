"""What metrics see of a cell: a module for each kind of model.

Sample             `Files` with the kind's columns, pictures, texts ..., each computed when it is
                   first asked for. `seen` is what a network sees in its pictures: features [n, d] and more by kind, {}
                   where there is no such network.
drawn, looked_at   pictures that quality is measured against, and what the network sees in them
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json
from parity.decode.shard_io import Shard, join, read_rows, read_shards
from parity.metrics import judges


@dataclass
class Files:
    """Files of one cell, and what is so for every kind of model that does not say otherwise."""

    cell: Path  # its folder, which holds spec.json
    shards: Sequence[Path]
    checkpoint: Path
    pictures: Sequence[Path] = ()
    laws: Path | None = None
    inputs: Sequence[Path] = ()
    reference: Path | None = None
    networks: Sequence[Path] = ()  # manifests of the networks that judge pictures of published models
    protocol: str = ""  # how; "" for models with networks of their own
    run_code: bool = False
    device: str = "cpu"
    rows: dict[str, Any] = field(default_factory=dict)  # columns of the records, as metrics give them

    fewest = 8  # images that FID is taken of

    @cached_property
    def forced(self) -> np.ndarray | None:
        """[L] bool: places that a grammar forces."""
        return None

    @cached_property
    def spec(self) -> dict[str, Any]:
        return read_json(self.cell / "spec.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.checkpoint)

    @cached_property
    def shard(self) -> Shard:
        return read_shards(self.shards)

    @cached_property
    def pixels(self) -> np.ndarray:
        """uint8 [n, H, W, 3]."""
        return self.column("pixels", self.pictures)

    @cached_property
    def logp(self) -> np.ndarray | None:
        """Log-probabilities of what was decoded: [n, L], or [n] of the missing part; None where no layer kept them."""
        return self.column("logp", [self.laws]) if self.laws else None

    @cached_property
    def compared(self) -> dict[str, np.ndarray]:
        """Pictures that quality is measured against, and what a network sees in them: features [m, d] and more."""
        return read_arrays(self.reference) if self.reference else {}

    @cached_property
    def groups(self) -> np.ndarray:
        """[n] int, rows of one group are alike: every row by itself."""
        return np.arange(len(self.shard.ids))

    @property
    def labels(self) -> dict[str, Any]:
        """Further columns that name a record."""
        return {}

    def each_picture(self) -> Iterator[np.ndarray]:
        """Pictures uint8 [H, W, 3] one after the other, a file at a time; ParityError unless they are the shards'
        rows."""
        ids: list[str] = []
        for file in self.pictures:
            rows = read_rows(file)
            ids += rows["ids"].astype(str).tolist()
            yield from rows["pixels"]
        if ids != self.shard.ids.astype(str).tolist():
            raise ParityError(f"{self.pictures[0]}: its ids are not those of {self.shards[0]}; delete it and run again")

    def judged(self, captions: Sequence[str] | None) -> dict[str, np.ndarray]:
        """What the declared networks see in pictures of a published model (`metrics.judges`)."""
        networks = judges.declared(self.networks)
        return judges.looked_at(self.each_picture, captions, networks, self.protocol, self.device)

    def column(self, name: str, files: Sequence[Path]) -> np.ndarray:
        """Of files that hold a row for each of the shards'; ParityError unless they are those, in their order."""
        rows = join([read_rows(file) for file in files])
        if not np.array_equal(rows["ids"].astype(str), self.shard.ids.astype(str)):
            raise ParityError(f"{files[0]}: its ids are not those of {self.shards[0]}; delete it and run again")
        return rows[name]
