"""Fixtures: a small cell of every kind on the embedded models, and the command that decodes it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.base.files import write_arrays, write_json
from parity.decode.__main__ import main
from parity.decode.shard_io import Shard, read_shard
from parity.experiment.options import options
from parity.inputs import prompts, tasks
from parity.models import fetch

TASK = {"rows": 3, "data": "", "length": 24, "masked": 0.8, "prompt": "scattered"}
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
MODELS: dict[str, Any] = {"discrete": {"family": "llamagen", "grid": 8}, "anysubset": {"family": "xlnet"}}
MODELS["continuous"] = {"family": "gmm"}
SPECS: dict[str, dict[str, Any]] = {
    "discrete": {"method": "sjd", "options": {"window": 8}, "sampling": SAMPLING, "dtype": "float32"},
    "anysubset": {"method": "assd", "options": {"k": 4}, "cache": True},
    "continuous": {"method": "cspd", "options": {"gamma": 4}, "sampling": {"temperature": 1.0}, "images": 3},
}


@dataclass(frozen=True)
class Job:
    """A cell of three rows and the folder of its files."""

    kind: str
    spec: dict[str, Any]
    manifest: dict[str, Any]
    rows: dict[str, np.ndarray] | None  # None where images are numbered
    folder: Path

    def replace_spec(self, **changes: Any) -> "Job":
        return replace(self, spec=self.spec | changes)

    def make_arguments(
        self, *, batch=3, code="0", checkpoint: str = "", shards=1, refill="auto", part=(0, 1)
    ) -> list[str]:
        """Write the manifest and the rows to the job's folder, and return the arguments of the command `decode`. A
        `checkpoint` is named in place of the manifest, for jobs that must not load a model."""
        write_json(self.folder / "manifest.json", self.manifest)
        input_flags = []
        if self.rows is not None:
            write_arrays(self.folder / "rows.npz", **self.rows)
            input_flags = ["--inputs", str(self.folder / "rows.npz")]
        manifest = checkpoint or str(self.folder / "manifest.json")
        path_flags = ["--checkpoint", manifest, "--spec", json.dumps(self.spec), "--store", str(self.store)]
        flags = ["--kind", self.kind, "--code", code, "--batch", str(batch), "--shards", str(shards)]
        flags += ["--refill", refill, "--part", *map(str, part)]
        return [*flags, *path_flags, *input_flags, "--out", str(self.folder / "0-of-1.npz")]

    @property
    def store(self) -> Path:
        """The folder in which the command keeps shards for other runs."""
        return self.folder / "store"


@pytest.fixture(scope="session")
def cells() -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray] | None]]:
    """Specification, manifest and rows of a small cell of each kind; no rows where images are numbered."""
    cells_by_kind = {}
    for kind, spec in SPECS.items():
        manifest = fetch.make_manifest(kind, kind, MODELS[kind], Path())
        rows = None
        if kind == "discrete":
            texts = ["a small red circle", "two large squares", "a blue ring"]
            rows = {"ids": np.array(["00000/000", "00001/000", "7/1"]), "captions": np.array(texts)}
            rows |= prompts.encode(manifest, texts)
        if kind == "anysubset":
            task = tasks.build("infilling", TASK, tasks.load_vocabulary(manifest))
            rows = {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}
        defaults = {"seed": 2, "batch": 3, "options": options(kind, spec["method"], spec["options"])}
        cells_by_kind[kind] = {**spec, **defaults}, manifest, rows
    return cells_by_kind


@pytest.fixture
def job(request, cells, tmp_path) -> Job:
    """The cell of the kind that the test's parameter names, in a fresh folder."""
    spec, manifest, rows = cells[request.param]
    return Job(request.param, spec, manifest, rows, tmp_path)


@pytest.fixture
def run_decode(run_main):
    """A function that runs the command `decode` on a job and returns the shard that it wrote."""

    def run_command(job: Job, **flags: Any) -> Shard:
        command_line = job.make_arguments(**flags)
        run_main(main, *command_line)
        return read_shard(Path(command_line[-1]))

    return run_command
