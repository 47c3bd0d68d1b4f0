"""Every recipe makes weights that its model loads; a card and digests are installed; the workflow trains in order."""

import hashlib
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import header, sums, write_json
from parity.base.weights import sha256
from parity.embedded import WEIGHTS
from parity.train.loop import Job, train
from recipes import data
from recipes.__main__ import main
from recipes.install import install
from recipes.runs import INSTALLS, RUNS, list_runs

SIZES = {"steps": 1, "batch": 2, "examples": 6}
HELD_OUT = {
    "IMAGES_TESTED": 200,
    "TOKENS_TESTED": 8,
    "CLASSES_TESTED": 8,
    "TEXTS_TESTED": 8,
}  # this many held-out examples give a finite loss
SHARED = {  # sizes that a draft must share with its target, and a model of another grid with the first
    "draft": ("llamagen", ("vocab", "grid", "prefix", "caption_dim")),
    "llamagen8": ("llamagen", ("vocab", "dim", "layers", "heads")),
    "drafter": ("llamagen", ("vocab", "grid", "dim")),
    "heads": ("llamagen", ("vocab", "grid", "dim")),
    **{f"{name}-draft": (name, ("classes", "grid", "dim", "latents")) for name in ("mar", "gmm", "xar", "harmon")},
}


def find_shipped(recipe):
    """Find the file of the weights that a recipe made and that ship with the package."""
    run = RUNS[recipe]
    return WEIGHTS / run.kind / f"{run.weights_name}.safetensors"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder for the files of all recipes; held-out sets are small and nothing is compiled, to save minutes."""
    with torch.compiler.set_stance("force_eager"), pytest.MonkeyPatch.context() as patch:
        for name, count in HELD_OUT.items():
            patch.setattr(data, name, count)
        yield tmp_path_factory.mktemp("training")


def run_recipe(work, name, **changed):
    """Train by a recipe for a few steps, from shipped weights where it reads some; return its log and its file."""
    for needed in RUNS[name].reads:
        shutil.copy(find_shipped(needed), work / f"{needed}.safetensors")
    job = Job(name, work, **SIZES | changed)
    return train(RUNS[name].make_recipe(job), job), job.out


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_makes_weights_like_the_shipped_ones(work, name):
    """After one step: the sizes in the header are those of the shipped weights, and the losses are finite."""
    log, file = run_recipe(work, name)
    steps = [row for row in log if "step" in row]
    assert steps[-1]["step"] == 1
    assert all(math.isfinite(v) for row in log for v in row.values())
    trained = header(file)
    shipped = header(find_shipped(name))
    sizes = shipped.keys() - {"latents", "scale", "target"}  # without those that depend on the weights
    assert {k: trained[k] for k in sizes} == {k: shipped[k] for k in sizes}
    if "target" in trained:
        assert trained["target"] == sha256(work / "llamagen.safetensors")
    if "latents" in trained:
        assert trained["latents"] == sha256(work / "kl.safetensors")[:16] == shipped["latents"]
    target, shared = SHARED.get(name, (name, ()))
    assert {k: trained[k] for k in shared} == {k: header(find_shipped(target))[k] for k in shared}


def test_a_run_is_a_function_of_its_seed(work):
    first, again, different = (run_recipe(work, "judge", seed=seed)[1].read_bytes() for seed in (0, 0, 1))
    assert first == again != different


def test_a_recipe_learns_in_a_few_steps(work):
    """Its loss falls below that of a uniform guess over the words, on the same few texts."""
    log, _ = run_recipe(work, "judge", steps=16)
    assert log[-2]["step"] == 16
    assert log[-2]["loss"] < 0.9 * math.log(len(header(find_shipped("judge"))["words"]))


RECORD = {"log": [{"step": 50, "loss": 0.5}, {"held_out": 0.25}], "threads": 1, "steps": 1200, "batch": 32}


@pytest.fixture
def trained(tmp_path):
    """A folder with weights and records of all discrete recipes, as after training; the weights are their names."""
    for run in list_runs("discrete"):
        (tmp_path / f"{run.name}.safetensors").write_bytes(run.name.encode())
        write_json(tmp_path / f"{run.name}.json", RECORD | {"examples": run.examples, "seed": 7})
    return tmp_path


def test_weights_are_installed_with_their_cards_and_digests(trained):
    out = trained / "package"
    install("discrete", trained, out)
    digests = sums(out)
    assert set(digests) == {f"{run.weights_name}.safetensors" for run in list_runs("discrete")}
    for name, digest in digests.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert (out / "t5.safetensors").read_bytes() == b"text"
    assert "text.safetensors" not in digests
    card = (out / "t5.md").read_text()
    for text in ("# t5\n", "taught to describe captions", "- data: Scenes, 20,000 procedural images", "seed 7"):
        assert text in card
    assert "- steps: 1,200 of batch 32" in card
    assert "- held_out: 0.25" in card
    assert "| 0.5 | 50 |" in card


def test_nothing_is_installed_if_a_recipe_has_not_run(trained):
    (trained / "drafter.json").unlink()
    with pytest.raises(ParityError, match=r"drafter\.json: no such file; run recipe drafter first"):
        install("discrete", trained, trained / "package")
    assert not (trained / "package").exists()


ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_targets_train_recipes_in_the_order_of_their_needs(tmp_path):
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    command += ["--configfile", str(ROOT / "config.yaml"), "--nocolor", "-np", *INSTALLS.values()]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    plan = finished.stdout + finished.stderr
    started = re.findall(r"python -m recipes (\S+) (\S+)", plan)
    jobs = [recipe for recipe, _ in started]
    assert sorted(jobs) == sorted([*RUNS, *["install"] * len(INSTALLS)])
    assert {kind for job, kind in started if job == "install"} == set(INSTALLS)
    for run in RUNS.values():
        assert all(jobs.index(needed) < jobs.index(run.name) for needed in run.reads)
        assert f"--steps {run.steps} " in plan
        assert f"--batch {run.batch} " in plan


def test_a_recipe_refuses_a_device_that_it_cannot_use(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["recipes", "vq", "--work", str(tmp_path), "--device", "cuda"])
    with pytest.raises(SystemExit):
        run_command(main)
    assert capsys.readouterr().err == "error: --device cuda: allowed: cpu, for vq\n"
