"""The training loop: resumable, seeded, and clear about a checkpoint that is another run's."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from parity.base.errors import ParityError
from parity.base.files import header, read_json
from recipes.loop import Job, Recipe, fit, train


class Killed(Exception):
    pass


def line(stop=None, hidden="^0.weight$", **settings):
    """A small regression, weighed by a memory of its steps; a run of it is killed before step `stop`."""
    torch.manual_seed(0)
    net, memory = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.ones(2)

    def loss(step, rng):
        if step == stop:
            raise Killed
        x = torch.from_numpy(rng.standard_normal((64, 4), "float32"))
        memory.mul_(torch.tensor([1.02, 0.97]))
        return ((net(x) - x[:, :2]) * memory).square().mean(), {"first": float(x[0, 0])}

    given = {"peak": 0.05, "warmup": 2, "every": 2, "average": 0.5, "memory": (memory,)} | settings
    return Recipe(net, loss, lambda: ({"done": 1.0}, {"sizes": [4, 8, 2]}), stream=(1,), hidden=hidden, **given)


@pytest.fixture
def job(tmp_path):
    return Job("line", tmp_path, steps=8, batch=64, examples=1)


def weights(recipe):
    return [p.detach().clone() for p in recipe.net.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_killed_training_goes_on_as_if_it_had_not_been(job):
    """Both optimisers, the mean of the weights, the memory, the log and the schedule come back from the checkpoint."""
    whole, killed, rest = line(), line(stop=7), line()
    log = fit(whole, replace(job, name="whole"))
    with pytest.raises(Killed):
        fit(killed, job, saved_every=0)
    assert job.out.with_suffix(".pt").exists() and not same(weights(killed), weights(whole))
    resumed = fit(rest, job, saved_every=0)
    assert [r["step"] for r in resumed] == [2, 4, 6, 8] and log[-1]["loss"] < log[0]["loss"]
    assert same(weights(rest), weights(whole))
    with pytest.raises(Killed):
        fit(line(stop=7, memory=()), replace(job, name="forgetful"), saved_every=0)
    forgetful = line(memory=())
    fit(forgetful, replace(job, name="forgetful"))
    assert not same(weights(forgetful), weights(whole))  # what the recipe does not name is lost
    assert [r["first"] for r in resumed] == [r["first"] for r in log] and len({r["first"] for r in log}) == 4


def test_what_a_run_is_asked_for_changes_its_weights(job):
    """Another seed, another optimiser, no mean: each is another result, so the test above can fail."""
    first = line()
    fit(first, job)
    for name, recipe, asked in (
        ("seed", line(), replace(job, seed=1)),
        ("adam", line(hidden=None), job),
        ("last", line(average=0.0), job),
        ("peak", line(peak=0.04), job),
    ):
        fit(recipe, replace(asked, name=name))
        assert not same(weights(recipe), weights(first)), name


def test_a_checkpoint_of_another_run_is_not_gone_on_with(job):
    with pytest.raises(Killed):
        fit(line(stop=6), job, saved_every=0)
    with pytest.raises(ParityError, match=r"line\.pt: of a run with steps = 8, not 12"):
        fit(line(), replace(job, steps=12))
    with pytest.raises(ParityError, match=r"seed = 0, not 3"):
        fit(line(), replace(job, seed=3))


def test_weights_the_log_and_the_header_are_written_and_the_checkpoint_goes(job):
    recipe = line()
    log = train(recipe, replace(job, threads=3))
    assert header(job.out) == {"sizes": [4, 8, 2]}
    said = read_json(job.out.with_suffix(".json"))
    assert said["log"] == log and log[-1] == {"done": 1.0} and (said["steps"], said["threads"]) == (8, 3)
    assert not job.out.with_suffix(".pt").exists()


def test_a_recipe_that_reads_another_says_which(job):
    with pytest.raises(ParityError, match=r"vq\.safetensors: no such file, and line reads it; run recipe vq first"):
        job.weights("vq")
