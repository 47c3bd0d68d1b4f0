"""A small cell of every kind on the embedded models, and the command that decodes it."""

import json
import sys
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
    """A cell of three rows, and where its files are."""

    kind: str
    spec: dict[str, Any]
    manifest: dict[str, Any]
    rows: dict[str, np.ndarray] | None  # None where images are numbered
    folder: Path

    def asked(self, **changes: Any) -> "Job":
        """The same with another specification."""
        return replace(self, spec=self.spec | changes)

    def arguments(
        self, *, batch=3, code="0", out="0-of-1.npz", checkpoint: str = "", shards=1, refill="auto"
    ) -> list[str]:
        """Of the command; its files are written. `checkpoint`: another file, for jobs that must not load a model."""
        write_json(self.folder / "manifest.json", self.manifest)
        given = []
        if self.rows is not None:
            write_arrays(self.folder / "rows.npz", **self.rows)
            given = ["--inputs", str(self.folder / "rows.npz")]
        manifest = checkpoint or str(self.folder / "manifest.json")
        paths = ["--checkpoint", manifest, "--spec", json.dumps(self.spec), "--store", str(self.store)]
        how = ["--kind", self.kind, "--code", code, "--batch", str(batch), "--shards", str(shards)]
        how += ["--refill", refill]
        return [*how, *paths, *given, "--out", str(self.folder / out)]

    @property
    def store(self) -> Path:
        return self.folder / "store"


@pytest.fixture(scope="session")
def cells() -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray] | None]]:
    """Specification, manifest and rows of each kind."""
    found = {}
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
        complete = {"seed": 2, "batch": 3, "options": options(kind, spec["method"], spec["options"])}
        found[kind] = {**spec, **complete}, manifest, rows
    return found


@pytest.fixture
def job(request, cells, tmp_path) -> Job:
    """The cell of the kind that a test is asked for."""
    spec, manifest, rows = cells[request.param]
    return Job(request.param, spec, manifest, rows, tmp_path)


@pytest.fixture
def decoded(monkeypatch):
    """A function that runs the whole command on a job and gives its shard."""

    def run(job: Job, **how: Any) -> Shard:
        arguments = job.arguments(**how)
        monkeypatch.setattr(sys, "argv", ["decode", *arguments])
        main()
        return read_shard(Path(arguments[-1]))

    return run
