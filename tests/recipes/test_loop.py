"""The training loop: resumable, seeded; the any-subset model's training scheme."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from parity_decoders.protocols.anysubset import make_lattice
from torch import nn

from parity.base.errors import ParityError
from parity.models.anysubset.xlnet import XLNet, xlnet
from parity.train.joint import Scheme, compute_joint_nats, draw_order, make_scheme
from parity.train.loop import Job, Recipe, fit


class Killed(Exception):
    pass


def make_regression(stop=None, hidden="^0.weight$", **settings):
    """Make the recipe of a small regression whose loss is weighed by a memory of its steps; it raises Killed at step
    `stop`. `settings` replace fields of the recipe."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    memory = torch.ones(2)

    def loss(step, rng):
        if step == stop:
            raise Killed
        x = torch.from_numpy(rng.standard_normal((64, 4), "float32"))
        memory.mul_(torch.tensor([1.02, 0.97]))
        return ((net(x) - x[:, :2]) * memory).square().mean(), {"first": float(x[0, 0])}

    fields = {"peak": 0.05, "warmup": 2, "log_every": 2, "average": 0.5, "memory": (memory,)} | settings
    return Recipe(net, loss, lambda: ({"done": 1.0}, {"sizes": [4, 8, 2]}), stream=(1,), hidden=hidden, **fields)


@pytest.fixture
def job(tmp_path):
    """A job of eight steps that writes to a fresh folder."""
    return Job("line", tmp_path, steps=8, batch=64, examples=1)


def copy_weights(recipe):
    return [p.detach().clone() for p in recipe.net.parameters()]


def are_equal(tensors, expected):
    return all(torch.equal(a, b) for a, b in zip(tensors, expected, strict=True))


def test_a_killed_training_continues_as_if_undisturbed(job):
    """Both optimisers, the mean of the weights, the memory, the log and the schedule come back from the checkpoint."""
    whole = make_regression()
    killed = make_regression(stop=7)
    resumed = make_regression()
    log_whole = fit(whole, replace(job, name="whole"))
    with pytest.raises(Killed):
        fit(killed, job, saved_every=0)
    assert job.out.with_suffix(".pt").exists()
    assert not are_equal(copy_weights(killed), copy_weights(whole))
    log_resumed = fit(resumed, job, saved_every=0)
    assert [r["step"] for r in log_resumed] == [2, 4, 6, 8]
    assert log_whole[-1]["loss"] < log_whole[0]["loss"]
    assert are_equal(copy_weights(resumed), copy_weights(whole))
    with pytest.raises(Killed):
        fit(make_regression(stop=7, memory=()), replace(job, name="forgetful"), saved_every=0)
    forgetful = make_regression(memory=())
    fit(forgetful, replace(job, name="forgetful"))
    # A memory that the recipe does not name is lost when it continues.
    assert not are_equal(copy_weights(forgetful), copy_weights(whole))
    assert [r["first"] for r in log_resumed] == [r["first"] for r in log_whole]
    assert len({r["first"] for r in log_whole}) == 4


def test_each_setting_of_a_run_changes_its_weights(job):
    """Another seed, another optimiser, no mean: each is another result, so the test above can fail."""
    first = make_regression()
    fit(first, job)
    for name, recipe, changed in (
        ("seed", make_regression(), replace(job, seed=1)),
        ("adam", make_regression(hidden=None), job),
        ("last", make_regression(average=0.0), job),
        ("peak", make_regression(peak=0.04), job),
    ):
        fit(recipe, replace(changed, name=name))
        assert not are_equal(copy_weights(recipe), copy_weights(first)), name


def test_a_checkpoint_of_another_run_is_refused(job):
    with pytest.raises(Killed):
        fit(make_regression(stop=6), job, saved_every=0)
    with pytest.raises(ParityError, match=r"line\.pt: of a run with steps = 8, not 12"):
        fit(make_regression(), replace(job, steps=12))
    with pytest.raises(ParityError, match=r"seed = 0, not 3"):
        fit(make_regression(), replace(job, seed=3))


B, N, V = 5, 12, 17


def test_the_loss_is_the_joint_conditional():
    """The loss of each masked word, given the prompt and the words before it in the order, is that of the model's
    distributions."""
    torch.manual_seed(0)
    net = xlnet(V, 32, 2, 4).eval()
    for p in net.parameters():
        p.data.mul_(10)  # an untrained network is nearly uniform, so its distributions would agree
    tokens = torch.randint(1, V, (B, N), generator=torch.Generator().manual_seed(1))
    is_prompt = torch.rand(B, N, generator=torch.Generator().manual_seed(2)) < 0.4
    is_prompt[:, 0] = True
    is_prompt[:, -1] = False
    order = make_lattice(is_prompt)[0]
    m = is_prompt.sum(1)
    ranks = torch.arange(N).expand(B, N)
    with torch.inference_mode():
        nats = compute_joint_nats(net, tokens, order, m).gather(1, order)
        p = XLNet(net, 0).probs(tokens, order, m, ranks, ranks.maximum(m[:, None]))
    by_rank = -p.gather(-1, tokens.gather(1, order)[..., None])[..., 0].log()
    expected = torch.where(ranks < m[:, None], 0, by_rank)
    torch.testing.assert_close(nats, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(nats, torch.where(ranks < m[:, None], 0, by_rank.roll(1, 1)), atol=1e-2)


@pytest.mark.parametrize("permutations", [0.0, 1.0])
def test_orders_are_the_lattices_unless_permuted(permutations):
    order, m = draw_order(Scheme(warmup=0, permutations=permutations), 0, (64, 32), np.random.default_rng(1))
    assert (order.sort(1).values == torch.arange(32)).all()
    long = [o[k:] for o, k in zip(order, m.tolist(), strict=True) if k < 28]  # few missing tokens may ascend by chance
    ascending = {bool((o.diff() > 0).all()) for o in long}
    assert ascending == {not permutations}


def test_an_unknown_key_of_a_scheme_is_named():
    assert make_scheme({"permutations": 1}).permutations == 1
    with pytest.raises(ParityError, match="--scheme order: unknown key; allowed: start, low, high"):
        make_scheme({"order": 1})
