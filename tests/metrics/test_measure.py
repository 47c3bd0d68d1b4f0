"""The command that measures cells of every kind: what it writes and refuses."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from parity.base.files import dump_canonical, read_arrays, read_json, write_arrays, write_json
from parity.decode.shard_io import write_shard
from parity.experiment import study
from parity.inputs import tasks
from parity.measure.__main__ import measure
from parity.metrics import images, speed
from parity.metrics.samples import continuous, discrete
from parity.models import fetch
from parity.models.anysubset.load import load
from tests.elsewhere import DEVICE, simulate_job_device
from tests.tables import make_shard_columns

N = 12  # images or texts of a cell
MODELS = {
    "discrete": ("scenes", {"family": "llamagen"}),
    "anysubset": ("xlnet", {"family": "xlnet"}),
    "continuous": ("mar", {"family": "mar"}),
}
# figures that metrics declare, but that these cells do not have
UNUSED = {"rouge1", "rouge2", "rougeL", "passed", "draft_conditions", "draft_share"}
PUBLISHED = {"discrete": {"cmmd", "hps", "pickscore", "is"}, "continuous": {"cmmd"}}  # figures of published networks


def make_columns(length: int) -> dict[str, np.ndarray]:
    """Make the columns that a shard of any kind has, of N rows in batches of 8 and 4, their clock made up."""
    first = np.arange(N) < 8
    in_two = {"seconds": (2, 1), "network_seconds": (1, 0.5), "passes": (length, length - 1)}
    in_two |= {"draft_calls": (4, 2), "draft_tokens": (8, 4), "batch": (8, 4), "at_once": (8, 4)}
    return {
        **make_shard_columns(N, length),
        "tokens": np.random.default_rng(0).integers(0, 9, (N, length)),
        **{name: np.where(first, *values) for name, values in in_two.items()},
    }


def write_images(kind: str, folder: Path, manifest: dict) -> dict[str, list[Path]]:
    """Write a cell's images, and reference images of the same captions or classes; return both as arguments."""
    prompts = folder / "prompts.json"
    kind_module = {"discrete": discrete, "continuous": continuous}[kind]
    write_json(prompts, [{"caption": f"a large {c} circle on a white background"} for c in ("red", "blue", "green")])
    pixels = kind_module.draw([prompts], N, manifest)
    write_arrays(folder / "images.npz", ids=make_columns(4)["ids"], pixels=pixels)
    write_json(folder / "manifest.json", manifest)
    arguments = {"prompts": [prompts], "checkpoint": folder / "manifest.json", "out": folder / "reference.npz"}
    images.write_reference(argparse.Namespace(kind=kind, folder="", count=N + 8, device="cpu", **arguments))
    return {"image_files": [folder / "images.npz"], "reference": folder / "reference.npz"}


def write_discrete_cell(folder: Path, manifest: dict) -> dict:
    """Write the files of a cell of image tokens to `folder`; return its columns and paths, for `write_cell`."""
    columns = make_columns(16) | {"captions": np.array(["a large red circle on a white background"] * N)}
    columns |= {"nfe": np.full(N, 15), "nodes": np.full(N, 32), "kept": np.ones((N, 16), int)}
    columns["first_seconds"] = np.full(N, 0.1)
    write_arrays(folder / "probs.npz", ids=columns["ids"], logp=np.log(np.full((N, 16), 0.25)))
    return {"columns": columns, "probs_file": folder / "probs.npz", **write_images("discrete", folder, manifest)}


def write_continuous_cell(folder: Path, manifest: dict) -> dict:
    """Write the files of a cell of vectors to `folder`; return its columns and paths, for `write_cell`."""
    accepted = np.tile([-1, 1, 0, 1], (N, 1)).astype(np.int8)
    columns = make_columns(4) | {"accepted": accepted, "order": np.tile([2, 0, 1, 3], (N, 1))}
    columns |= {name: np.where(accepted >= 0, 1.5, np.nan) for name in ("log_ratio", "distance")}
    ones = ("steps", "tries", "gave_up", "target_conditions", "depth", "target_head_rows")
    columns |= {name: np.ones(N) for name in ones}
    columns["accepted_drafts"] = (accepted == 1).sum(1)
    columns |= {f"target_{name}_seconds": np.ones(N) for name in ("network", "head", "density")}
    return {"columns": columns, **write_images("continuous", folder, manifest)}


def write_anysubset_cell(folder: Path, manifest: dict) -> dict:
    """Write the files of a cell of texts to `folder`; return its columns and paths, for `write_cell`."""
    settings = {"rows": N, "length": 16, "masked": 0.5, "prompt": "scattered", "data": ""}
    task = tasks.build("infilling", settings, load(manifest).words)
    inputs = {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}
    write_arrays(folder / "task.npz", **inputs, extra=np.array(dump_canonical(task.extra)))
    write_arrays(folder / "probs.npz", ids=inputs["ids"], logp=-np.arange(float(N)))
    counts = {"nfe": 4, "aux": 0, "loops": 2, "accepted_drafts": 4, "missing": 8}
    columns = make_columns(16) | {"ids": inputs["ids"], "tokens": task.tokens, "end": task.end}
    columns |= {name: np.full(N, count) for name, count in counts.items()}
    return {"columns": columns, "probs_file": folder / "probs.npz", "inputs": [folder / "task.npz"]}


CELLS = {"discrete": write_discrete_cell, "anysubset": write_anysubset_cell, "continuous": write_continuous_cell}


def write_cell(folder: Path, kind: str, columns: dict, **files) -> dict:
    """Write a cell's specification and its columns as a shard to a folder; return the arguments of `measure`."""
    cell = folder / "some-0123abcd"
    spec = {"model": MODELS[kind][0], "method": "some", "seed": 3, "task_kind": "infilling", "task": "89abcdef"}
    write_json(cell / "spec.json", spec)
    write_shard(cell / "0.npz", columns, {"device": "cpu", "dtype": "float32"})
    return {"kind": kind, "cell": cell, "shards": [cell / "0.npz"], "checkpoint": folder / "manifest.json", **files}


@pytest.fixture(scope="module", params=CELLS)
def measured(request, tmp_path_factory):
    """A cell of each kind after `measure`: its kind, its folder and the arguments."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    manifest = fetch.make_manifest(kind, *MODELS[kind], folder)
    write_json(folder / "manifest.json", manifest)
    arguments = write_cell(folder, kind, **CELLS[kind](folder, manifest))
    measure(**arguments)
    return kind, arguments["cell"], arguments


def test_every_declared_figure_is_given(measured):
    kind, folder, _ = measured
    figures = read_json(folder / "metrics.json")
    declared = (
        {name for figures in study.metrics(kind).values() for name in figures} - UNUSED - PUBLISHED.get(kind, set())
    )
    assert declared <= {name for name, value in figures.items() if value is not None}
    assert figures["n"] == N
    assert figures["batches"] == 2
    assert not any(isinstance(value, list | dict) for value in figures.values())


def test_records_have_a_row_for_each_of_the_cells_rows(measured):
    kind, folder, _ = measured
    records = pd.read_parquet(folder / "records.parquet")
    assert len(records) == N
    assert set(records["key"]) == {"0123abcd"}
    assert set(records["seed"]) == {3}
    columns = {"discrete": {"caption", "clip"}, "anysubset": {"text", "perplexity"}, "continuous": {"class", "right"}}
    assert {"id", "model", "method", "batch_seconds"} | columns[kind] <= set(records)
    arrays = read_arrays(folder / "features.npz")
    assert arrays["ids"].tolist() == records["id"].tolist()
    expected = {"discrete": {"features", "cosine", "captions", "logp"}, "anysubset": {"logp"}}
    assert expected.get(kind, {"features", "by_place", "by_cell"}) <= set(arrays)


def test_on_another_device_the_figures_are_the_same(measured, tmp_path):
    """No op mixes two devices, and the number of reads grows with batches instead of rows."""
    _, folder, arguments = measured
    other_cell = tmp_path / folder.name
    write_json(other_cell / "spec.json", read_json(folder / "spec.json"))
    with simulate_job_device() as device:
        measure(**arguments | {"cell": other_cell, "device": str(DEVICE)})
    assert (other_cell / "metrics.json").read_bytes() == (folder / "metrics.json").read_bytes()
    assert 0 < len(device.reads) < N


def test_files_of_other_rows_are_refused(measured, tmp_path):
    kind, _, arguments = measured
    flag = "image_files" if kind == "continuous" else "probs_file"
    original = arguments[flag]
    reversed_file = tmp_path / "other.npz"
    columns = read_arrays(original[0] if isinstance(original, list) else original)
    write_arrays(reversed_file, **{name: column[::-1] for name, column in columns.items()})
    with pytest.raises(ValueError, match=r"other\.npz: its ids are not those of .*0\.npz"):
        measure(**arguments | {flag: [reversed_file] if isinstance(original, list) else reversed_file})


def test_a_metric_without_a_value_for_each_row_is_one_line(measured, monkeypatch):
    monkeypatch.setattr(speed, "rows", lambda sample: {"x": [1, 2]})
    with pytest.raises(ValueError, match=r"speed.py: 2 values of x; needed: 12, one a row"):
        measure(**measured[2])
