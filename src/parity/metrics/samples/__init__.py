"""What metrics read of a cell, a module for each kind of model.

Sample      `Files` with the kind's columns, images, texts ..., each computed when it is first asked for
draw        images that quality is compared with
outputs_of  what the model's own network sees in images: features [n, d] and more by kind, {} without such a network
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.digests import read_manifest
from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json
from parity.decode.shard_io import Shard, join, read_rows, read_shards
from parity.metrics import judges


@dataclass
class Files:
    """Files of one cell, and what holds for every kind of model that does not say otherwise."""

    cell: Path  # the cell's folder, which holds spec.json
    shards: Sequence[Path]
    checkpoint: Path
    image_files: Sequence[Path] = ()
    probs_file: Path | None = None
    inputs: Sequence[Path] = ()
    reference: Path | None = None
    networks: Sequence[Path] = ()  # manifests of networks that judge images of published models
    protocol: str = ""  # how such images are measured; "" for embedded models
    run_code: bool = False
    device: str = "cpu"
    rows: dict[str, Any] = field(default_factory=dict)  # columns that metrics add to the records

    fewest = 8  # FID needs this many images

    @cached_property
    def forced(self) -> np.ndarray | None:
        """[L] bool: places that a grammar forces."""
        return None

    @cached_property
    def labels(self) -> dict[str, Any]:
        """Further columns that name a record."""
        return {}

    @cached_property
    def spec(self) -> dict[str, Any]:
        return read_json(self.cell / "spec.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.checkpoint)

    @cached_property
    def shard(self) -> Shard:
        return read_shards(self.shards)

    @cached_property
    def pixels(self) -> np.ndarray:
        """uint8 [n, H, W, 3]."""
        return self.column("pixels", self.image_files)

    @cached_property
    def logp(self) -> np.ndarray | None:
        """Log-probabilities of what was decoded: [n, L], or [n] of the missing part; None if no layer stored them."""
        return self.column("logp", [self.probs_file]) if self.probs_file else None

    @cached_property
    def reference_outputs(self) -> dict[str, np.ndarray]:
        """What a network sees in the images that quality is compared with: features [m, d] and more."""
        return read_arrays(self.reference) if self.reference else {}

    @cached_property
    def groups(self) -> np.ndarray:
        """[n] int, rows of one group are alike: every row by itself."""
        return np.arange(len(self.shard.ids))

    def read(self, files: Sequence[Path]) -> Iterator[dict[str, np.ndarray]]:
        """Yield each file's columns. Raises ParityError at the end unless all rows are the shards', in their order."""
        ids: list[str] = []
        for file in files:
            columns = read_rows(file)
            ids += columns["ids"].astype(str).tolist()
            yield columns
        if ids != self.shard.ids.astype(str).tolist():
            raise ParityError(f"{files[0]}: its ids are not those of {self.shards[0]}; delete it and run again")

    def column(self, name: str, files: Sequence[Path]) -> np.ndarray:
        return join(list(self.read(files)))[name]

    def judge(self, captions: Sequence[str] | None) -> dict[str, np.ndarray]:
        """Measure what the declared networks see in images of a published model (`metrics.judges`), read one after
        the other: there may be more than fit into memory."""

        def images() -> Iterator[np.ndarray]:
            for columns in self.read(self.image_files):
                yield from columns["pixels"]

        networks = judges.read_manifests(self.networks)
        return judges.measure_images(images, captions, networks, self.protocol, self.device)
