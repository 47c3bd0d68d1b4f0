"""Equality layers that test a cell: one module each, in the folder of the kind of model. To add a layer, add a file.

A module declares literals, which the rules read without importing it (`parity.experiment.layers`):

    ROLES     roles of cells that it tests: some of "reference", "control", "method", "again"
    WHEN      "always"; "coupled": cells that must return plain decoding's tokens; "drafted": methods with drafts, of
              tokens or of steps, and controls
    READS     some of "shards", "inputs", "checkpoint", "features" (of the cell), "baseline" (shards and features of the
              reference cell), "reference" (images that quality is compared with)
    WRITES    ("probs",) if it also writes what the target gave the cell's tokens, else ()
    SETTINGS  keys of the section `equality` (and `forced`, `conditions` of `continuous`) that it reads beside `alpha`,
              which every layer's rows have

and has `rows(cell) -> list of rows`. The module's name with "-" for "_" is the layer's name in paths.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from parity_certify import result_rows as R
from parity_certify.import_by_name import import_named_module

from parity.base.digests import read_manifest
from parity.base.files import read_arrays, read_json, write_arrays
from parity.decode.shard_io import Shard, join, read_rows, read_shards, rows_of


@dataclass
class CellFiles:
    """The files of a cell that layers read, each when it is first used, and where to write."""

    kind: str
    folder: Path  # folder of the cell, results/cells/<kind>/<model>/<method>-<key>
    settings: dict[str, Any] = field(default_factory=dict)
    shard_files: list[Path] = field(default_factory=list)
    input_files: list[Path] = field(default_factory=list)
    checkpoint: Path | None = None
    baseline_folder: Path | None = None  # folder of the reference cell, plain decoding
    reference_file: Path | None = None  # features of the images that quality is compared with
    probs_file: Path | None = None  # where `write_probs` writes what the target gave the cell's tokens
    device: str = "cpu"
    extra_entries: dict[str, Any] = field(default_factory=dict)  # for the layer's JSON file

    @cached_property
    def spec(self) -> dict[str, Any]:
        return read_json(self.folder / "spec.json")

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns that every row of the cell has: its model, method and key."""
        key = self.folder.name.rsplit("-", 1)[1]
        return {"model": self.spec["model"], "method": self.spec["method"], "key": key}

    @cached_property
    def shards(self) -> Shard:
        return read_shards(self.shard_files)

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """Read what the cell's rows were decoded from, a column each. Raises ParityError unless the rows are those of
        the shards, in their order, where shards were given."""
        if self.shard_files:
            return rows_of(self.input_files, self.shards)
        return join([read_rows(file) for file in self.input_files])

    @cached_property
    def manifest(self) -> dict[str, Any]:
        assert self.checkpoint is not None, "--checkpoint"
        return read_manifest(self.checkpoint)

    @cached_property
    def features(self) -> dict[str, np.ndarray]:
        return read_arrays(self.folder / "features.npz")

    @cached_property
    def baseline(self) -> "CellFiles":
        """Make the files of the reference cell: its features and its shards, which have the names of this cell's."""
        assert self.baseline_folder is not None, "--baseline"
        shards = [self.baseline_folder / "shards" / file.name for file in self.shard_files]
        return CellFiles(self.kind, self.baseline_folder, shard_files=shards)

    @cached_property
    def reference(self) -> dict[str, np.ndarray]:
        assert self.reference_file is not None, "--reference"
        return read_arrays(self.reference_file)

    def write_probs(self, **arrays: np.ndarray) -> None:
        assert self.probs_file is not None
        write_arrays(self.probs_file, **arrays)


def run_layer(name: str, cell: CellFiles) -> dict[str, Any]:
    """Run the layer `name` on a cell at the level `equality.alpha`. Returns the content of the layer's JSON file: its
    "rows" and the entries that it added to `cell.extra_entries`."""
    with R.set_alpha(cell.settings.get("alpha", R.ALPHA)):
        return {
            "rows": import_named_module(f"parity.equality.layers.{cell.kind}.{name}").rows(cell),
            **cell.extra_entries,
        }
