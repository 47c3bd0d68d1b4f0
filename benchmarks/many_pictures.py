"""What a run of many or of long images takes beside its networks: planning, the store, metrics and tests of a cell,
the report.

    export PYTHONPATH=.
    python benchmarks/many_pictures.py FOLDER --images 1000 5000 30000 --keep many-pictures
    python benchmarks/many_pictures.py FOLDER --images 64 --times 1 4 16 --only test report --keep long-pictures

A results folder of twelve images by every image method of config.yaml is made up in FOLDER (tests/report/made.py).
Its rows are then copied to experiments of this many images each, of this many times 256 tokens. Each part runs in a
process of its own, whose CPU-seconds and peak memory are kept. What a network computes is copied too, except for CLIP's
features.
"""

import argparse
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from docs_figures import keep_benchmark

from parity.base.files import read_arrays, read_json, write_arrays, write_json
from parity.decode.shard_io import is_whole, link, read_shard, read_shards, shard_file, write_shard
from parity.embedded import scenes
from parity.experiment import checks, layers, paths
from parity.experiment.cells import Cell, cells, group_cells
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config
from parity.metrics.tables import write_table

ROOT = Path(__file__).resolve().parents[1]
FEW = 12  # made-up images that are copied
JOBS = 200  # parts of a cell, as 30,000 images would be decoded in
VOCAB = 512  # tokens of the distribution that stands for all
EQUALITY = {"n": 10_000, "long": 0, "pathwise": 1, "swaps": 99}
PARTS = ("plan", "store", "measure", "test", "report")


def make_experiment(n: int, shards: int) -> dict[str, Any]:
    """Make the configuration of the image methods of config.yaml for n prompts in this many shards."""
    image = yaml.safe_load((ROOT / "config.yaml").read_text())["image"]
    image |= {
        "prompts": {"file": "prompts.txt" if n == FEW else f"{n}.txt", "limit": n, "shards": shards, "jobs": shards},
        "batch": FEW,
    }
    return {
        "experiment": f"many-{n}",
        "equality": EQUALITY,
        "models": {"scenes": {"family": "llamagen"}},
        "image": image,
    }


def write_experiment(folder: Path, n: int, shards: int) -> Path:
    """Write a file of n captions of Scenes and the experiment on it; return the experiment's file."""
    (folder / f"{n}.txt").write_text("\n".join(scenes.draw_example(i)[0] for i in range(n)))
    file = folder / f"{n}-{shards}.yaml"
    file.write_text(yaml.safe_dump(make_experiment(n, shards)))
    return file


def read_experiment(folder: Path, n: int) -> tuple[Config, list[Cell]]:
    """Read the experiment of n prompts of a folder: its configuration and cells."""
    settings = checks.make_config(make_experiment(n, 1))
    assert settings.image is not None
    return settings, cells(settings, read_prompts(settings.image.prompts, folder))


def make_up(folder: Path) -> None:
    """Make up the results of FEW images, and the manifest of the embedded model that is there."""
    from parity.models import fetch
    from tests.report import made

    experiment = make_experiment(FEW, 1)
    made.SPEED |= dict.fromkeys(experiment["image"]["methods"], 3.0) | {"ar": 1.0}
    settings = made.write_results(folder, experiment)
    manifest = folder / next(iter(paths.manifests(settings).values()))
    write_json(manifest, fetch.make_manifest("discrete", "scenes", {"family": "llamagen"}, folder / "read"))
    images = np.stack([scenes.draw_ground_truth(scenes.draw_example(i)[0], i) for i in range(256)])
    rng = np.random.default_rng(0)
    arrays = {"pixels": images, "features": rng.standard_normal((len(images), 128)).astype(np.float32)}
    write_arrays(folder / "results/reference/discrete/made.npz", **arrays)


def repeat_rows(column: np.ndarray, n: int) -> np.ndarray:
    """Repeat the rows of a column until there are n."""
    return np.resize(column, (n, *column.shape[1:])) if column.ndim else column


def lengthen(column: np.ndarray, name: str, times: int) -> np.ndarray:
    """Repeat the tokens of each row of a shard's or of distributions' column, and their passes one after the other."""
    if times == 1 or name not in ("tokens", "step", "kept", "logp", "top1"):
        return column
    later = column.max(1, keepdims=True) if name == "step" else 0
    return np.concatenate([column + k * later for k in range(times)], 1).astype(column.dtype)


def copy_cell(folder: Path, old: Cell, new: Cell, n: int, times: int) -> None:
    """Copy the files of a cell of FEW images to those of n, of `times` as many tokens."""
    ids = np.array([f"{i:05d}/000" for i in range(n)])
    source, target = (folder / paths.folder(cell) for cell in (old, new))
    write_json(target / "spec.json", new.spec)
    write_json(target / "metrics.json", read_json(source / "metrics.json") | {"n": n})
    shutil.copy(source / "equality.json", target / "equality.json")
    shard = read_shard(source / "shards/0-of-1.npz")
    kept = [np.bincount(row)[1:] for row in shard.step]
    widest = max(map(len, kept))
    added = {"kept": np.stack([np.pad(row, (0, widest - len(row))) for row in kept]).astype(np.int16)}
    added |= {"nodes": 16 * shard.nfe}
    rng = np.random.default_rng(int(new.key, 16))
    columns = {name: repeat_rows(lengthen(x, name, times), n) for name, x in (shard.columns | added).items()}
    columns |= {"ids": ids, "tokens": rng.integers(VOCAB, size=columns["tokens"].shape, dtype=np.int32)}
    write_shard(target / "shards/0-of-1.npz", columns, shard.provenance)
    probs = {"top1": read_arrays(source / "probs.npz")["top1"].astype(np.float32)}
    probs["logp"] = np.log(probs["top1"].astype(float))
    features = read_arrays(source / "features.npz") | {"logp": probs["logp"]}
    for name, arrays in (("probs", probs), ("features", features)):
        repeated = {key: repeat_rows(lengthen(x, key, times), n) for key, x in arrays.items()}
        write_arrays(target / f"{name}.npz", **repeated | {"ids": ids})
    images = folder / f"images-{n}.npz"  # cells have the same images
    if not images.exists():
        pixels = repeat_rows(read_arrays(source / "images/0-of-1.npz")["pixels"], n)
        write_arrays(images, ids=ids, pixels=pixels)
    link(images, target / "images/0-of-1.npz")
    constant = {name: np.full(n, new.spec[name]) for name in ("model", "method", "seed")}
    by_pass = [row[row > 0] for row in columns["kept"]]
    rows = {"nfe": columns["nfe"], "nodes": columns["nodes"], "kept": by_pass, "step": list(columns["step"])}
    write_table(target / "records.parquet", {"id": ids, **constant, "key": np.full(n, new.key), **rows})


def copy_run(folder: Path, n: int, times: int) -> None:
    """Copy the run of FEW images to one of n, of `times` as many tokens. Earlier copies are removed."""
    from tests.report import made

    _, old_cells = read_experiment(folder, FEW)
    settings, new_cells = read_experiment(folder, n)
    for group in group_cells(new_cells):
        speeds = {cell.key: made.make_speed(cell) for cell in group}
        write_json(folder / paths.speed(settings, group), {"load": 1.0, "cells": speeds})
    for old, new in zip(old_cells, new_cells, strict=True):
        shutil.rmtree(folder / paths.folder(new), ignore_errors=True)
        copy_cell(folder, old, new, n, times)


def run_part(folder: Path, part: str, n: int) -> dict[str, Any]:
    """Run a part for n images in this process, and return what else it measured."""
    settings, all_cells = read_experiment(folder, n)
    os.chdir(folder)
    cell, base = (next(c for c in all_cells if c.spec["method"] == method) for method in ("sjd", "ar"))
    here = Path(paths.folder(cell))
    if part == "store":
        return store_cell(cell, here)
    if part == "measure":
        return measure_cell(settings, here, Path(paths.folder(base)))
    if part == "test":
        return test_cell(here)
    out = Path(f"results/{settings.experiment}")
    command = ["report", "--config", json.dumps(make_experiment(n, 1)), "--published"]
    sys.argv = [*command, *map(str, sorted((ROOT / "workflow/published").glob("*.csv"))), "--out", str(out)]
    from parity.report.__main__ import main

    main()
    return {"bytes": (out / "report.html").stat().st_size}


def store_cell(cell: Cell, here: Path) -> dict[str, Any]:
    """Store the rows of a cell in JOBS shards, look each up, and join them, as jobs of decoding do."""
    from parity.decode.__main__ import split_rows

    shard = read_shard(here / "shards/0-of-1.npz")
    began = time.process_time()
    files = []
    for rows in split_rows(shard.columns, min(JOBS, len(shard.ids))):
        inputs = {"ids": rows["ids"], "captions": rows["captions"]}
        files.append(shard_file(Path("store"), "discrete", cell.spec, "code", inputs))
        write_shard(files[-1], rows, shard.provenance)
    assert all(map(is_whole, files))
    write_shard(Path("joined.npz"), read_shards(files).columns, shard.provenance)
    size = Path("joined.npz").stat().st_size
    shutil.rmtree("store")
    return {"seconds": time.process_time() - began, "bytes": size}


def measure_cell(settings: Config, here: Path, base: Path) -> dict[str, Any]:
    """Compute the metrics of a cell, and its paired tests, from distributions and images that are there."""
    from parity.equality.layers import CellFiles, run_layer
    from parity.measure.__main__ import measure

    settings_of = layers.layer_settings(
        settings, {"discrete": layers.read_layers("discrete")}, find_cell(settings, here)
    )
    manifest = Path(next(iter(paths.manifests(settings).values())))
    reference = next(Path("results/reference/discrete").rglob("*.npz"))
    files = {"shards": [here / "shards/0-of-1.npz"], "image_files": [here / "images/0-of-1.npz"]}
    files |= {"probs_file": here / "probs.npz", "checkpoint": manifest, "reference": reference}
    measure("discrete", here, **files)
    arrays = read_arrays(here / "features.npz")
    rolled = {name: column if name == "ids" else np.roll(column, 1, 0) for name, column in arrays.items()}
    write_arrays(base / "features.npz", **rolled)
    began = time.process_time()
    run_layer("paired", CellFiles("discrete", here, settings_of["paired"], [], [], None, base, reference))
    return {"seconds": time.process_time() - began}


def find_cell(settings: Config, here: Path) -> Cell:
    """Find the cell of a folder."""
    assert settings.image is not None
    found = cells(settings, read_prompts(settings.image.prompts))
    return next(c for c in found if Path(paths.folder(c)) == here)


def test_cell(here: Path) -> dict[str, Any]:
    """Run the battery on a cell's tokens, and the test of rows that depend, under one distribution that stands for
    all."""
    import torch
    from parity_certify.teacher_forced import assign_slots, run_battery

    from parity.equality.row_dependence import RowDependence

    shard = read_shard(here / "shards/0-of-1.npz")
    probs = torch.full((shard.tokens.shape[1], VOCAB), 1 / VOCAB)
    dependence = RowDependence(shard.tokens, shard.batch, shard.at_once, shard.step)

    def compute_probs(first: int, end: int) -> torch.Tensor:
        """Return the distribution for rows first to end - 1."""
        p = probs.expand(end - first, -1, -1)
        dependence.add(first, p)
        return p

    rng = np.random.default_rng(0)
    run_battery(shard.tokens, compute_probs, 16, rng=rng, slot=assign_slots(shard.step), chunk=16, strict=False)
    dependence.make_row(model="", method="", seed=0)
    return {}


def run_alone(command: list[str], folder: Path) -> tuple[str, dict[str, float]]:
    """Run a command in a folder; return what it printed, its peak MiB and CPU-seconds. Raises SystemExit if it fails.
    Peak memory is this process's at least, which therefore copies nothing itself."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # where `tests` are
    running = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    printed = running.stdout.read()
    _, status, usage = os.wait4(running.pid, 0)
    if status:
        raise SystemExit(f"{shlex.join(command)}: ended with {status}")
    return printed, {"mib": usage.ru_maxrss / 1024, "cpu_seconds": usage.ru_utime + usage.ru_stime}


def measure_parts(folder: Path, images: list[int], times: list[int], only: list[str]) -> Iterator[dict[str, Any]]:
    """Measure each part at each number of images and each length in a process of its own; yield a row each."""
    for n, longer in itertools.product(images, times):
        planned = write_experiment(folder, n, min(JOBS, n))
        own = [sys.executable, __file__, str(folder), "--images", str(n), "--times", str(longer), "--run"]
        if set(only) != {"plan"}:
            run_alone([*own, "copy"], folder)
        for part in only:
            command = [*own, part]
            if part == "plan":
                command = [sys.executable, "-m", "snakemake", "--cores", "1", "--snakefile", str(ROOT / "Snakefile")]
                command += ["--configfile", planned.name, "-n", "--quiet"]
            printed, taken = run_alone(command, folder)
            row = {"part": part, "images": n, "tokens": 256 * longer, **taken}
            yield row | (json.loads(printed.splitlines()[-1]) if part != "plan" else {})


def main() -> None:
    """Measure the parts; print their rows, and keep them if --keep names them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 5000, 30_000])
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="times 256 tokens of an image")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--run", choices=(*PARTS, "copy"), default="", help="run one part in this process")
    parser.add_argument("--keep", default="", help="name of the table in docs/figures")
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    if a.run == "copy":
        make_up(a.folder)
        copy_run(a.folder, a.images[0], a.times[0])
        return
    if a.run:
        print("\n" + json.dumps(run_part(a.folder, a.run, a.images[0])))
        return
    kept = []
    try:
        for row in measure_parts(a.folder.absolute(), a.images, a.times, a.only):
            print({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            kept.append(row)
    finally:  # also what was measured before an interruption
        if a.keep and kept:
            keep_benchmark(a.keep, kept)


if __name__ == "__main__":
    main()
