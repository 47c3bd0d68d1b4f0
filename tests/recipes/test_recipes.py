"""Every recipe: a few steps on a few examples make weights that its model's loader takes, and a log that is whole."""

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
HELD_OUT = {"PICTURES_TESTED": 200, "TOKENS_TESTED": 8, "CLASSES_TESTED": 8, "TEXTS_TESTED": 8}  # finite is enough
SAME = {  # what a draft must share with its target, or another grid with the first
    "draft": ("llamagen", ("vocab", "grid", "prefix", "caption_dim")),
    "llamagen8": ("llamagen", ("vocab", "dim", "layers", "heads")),
    "drafter": ("llamagen", ("vocab", "grid", "dim")),
    **{f"{name}-draft": (name, ("classes", "grid", "dim", "latents")) for name in ("mar", "gmm", "xar", "harmon")},
}


def shipped(recipe):
    run = RUNS[recipe]
    return WEIGHTS / run.kind / f"{run.installed}.safetensors"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """One folder for all recipes, few held-out examples, nothing compiled, which takes minutes."""
    with torch.compiler.set_stance("force_eager"), pytest.MonkeyPatch.context() as few:
        for name, count in HELD_OUT.items():
            few.setattr(data, name, count)
        yield tmp_path_factory.mktemp("training")


def made(work, name, **changed):
    """A run of a recipe beside the shipped weights of those that it reads: its log, its file."""
    for other in RUNS[name].reads:
        shutil.copy(shipped(other), work / f"{other}.safetensors")
    job = Job(name, work, **SIZES | changed)
    return train(RUNS[name].recipe(job), job), job.out


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_makes_weights_like_those_that_are_shipped(work, name):
    """Of one step. The same sizes in the header, those of the architecture, and finite losses."""
    log, file = made(work, name)
    steps = [row for row in log if "step" in row]
    assert steps[-1]["step"] == 1 and all(math.isfinite(v) for row in log for v in row.values())
    said, known = header(file), header(shipped(name))
    drawn = ("latents", "scale", "target")  # of the weights that it read, or learned
    assert {k: said[k] for k in known if k not in drawn} == {k: v for k, v in known.items() if k not in drawn}
    if "target" in said:
        assert said["target"] == sha256(work / "llamagen.safetensors")
    if "latents" in said:
        assert said["latents"] == sha256(work / "kl.safetensors")[:16] == known["latents"]
    other, shared = SAME.get(name, (name, ()))
    assert {k: said[k] for k in shared} == {k: header(shipped(other))[k] for k in shared}


def test_a_run_is_a_function_of_its_seed(work):
    first, again, other = (made(work, "judge", seed=seed)[1].read_bytes() for seed in (0, 0, 1))
    assert first == again != other


def test_a_recipe_learns(work):
    """Below a uniform guess over the words within a few steps of the same few texts."""
    log, _ = made(work, "judge", steps=16)
    assert log[-2]["step"] == 16 and log[-2]["loss"] < 0.9 * math.log(len(header(shipped("judge"))["words"]))
