"""Every recipe: a few steps on a few examples make weights that its model's loader takes, and a whole log."""

import math
import shutil

import pytest
import torch

from parity.base.files import header
from parity.base.weights import sha256
from parity.embedded import WEIGHTS
from recipes import data
from recipes.loop import Job, train
from recipes.runs import RUNS

SIZES = {"steps": 1, "batch": 2, "examples": 6}
HELD_OUT = {
    "PICTURES_TESTED": 200,
    "TOKENS_TESTED": 8,
    "CLASSES_TESTED": 8,
    "TEXTS_TESTED": 8,
}  # so many held-out examples give a finite loss
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
