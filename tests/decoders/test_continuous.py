"""Decoders of continuous tokens: the target alone, and continuous speculative decoding with its options."""

from typing import Any

import numpy as np
import pytest
import torch
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import count_known, mar
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order

from parity.base.row_noise import batch_noise
from parity.decode.continuous import Clocked, record
from parity.equality.targets.continuous import make_continuous_rows
from parity.models.continuous.diffusion import TRAINED, HeadSampling, Steps, make_schedule, walk
from parity.models.continuous.mar import MAR, MARConfig, MARNet
from tests.tables import make_mixtures

CONFIG = MARConfig(
    classes=6, grid=4, dim=4, width=32, encoder=1, decoder=1, heads=2, buffer=2, head_width=32, head_depth=1
)
SAMPLING = HeadSampling(steps=5, guidance=2.0)


def make_network(seed: int, spread: float = 0.1) -> MARNet:
    """Make a small random MAR in float64; `spread` is the deviation of its weights."""
    torch.manual_seed(seed)
    net = MARNet(CONFIG).double().eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=spread)
    return net


TARGET, DRAFT = make_network(0), make_network(1)


def make_pair(draft: MARNet, n: int) -> Pair:
    """Make the target and a draft network as models of n images whose calls are counted and timed."""
    labels = torch.arange(n) % CONFIG.classes
    each = (MAR(net, labels, SAMPLING) for net in (TARGET, draft))
    return Pair(*(Clocked.clock_batch(model, labels[:, None]) for model in each))


def decode(models: Pair, ids: list[str], method: Any = mar, **method_options: Any):
    """Decode images plainly, or by `method`, with the noise of their ids."""
    noise = batch_noise(0, ids, dtype=torch.float64)
    start = Start(draw_order(noise, len(ids), CONFIG.tokens, False))
    return record(models, start, method(models, start, noise=noise, **method_options))


# --- decoders on small random networks


@pytest.mark.parametrize("method_options", [{}, {"gamma": 1, "prefill": 0.0}, {"gamma": 16, "prefill": 0.3}])
def test_the_target_as_draft_model_is_plain_sampling(method_options):
    ids = [str(i) for i in range(3)]
    plain = decode(make_pair(TARGET, 3), ids)
    fast = decode(make_pair(TARGET, 3), ids, cspd, **method_options)
    assert (plain.tokens - fast.tokens).abs().max() < 1e-9
    assert (fast.accepted != 0).all()
    assert (fast.steps <= plain.steps).all()
    imperfect = decode(make_pair(DRAFT, 3), ids, cspd, **method_options)
    # An imperfect draft does change tokens, so that the comparison above can fail.
    assert (plain.tokens - imperfect.tokens).abs().max() > 1e-3


def test_a_step_calls_the_target_once():
    models = make_pair(DRAFT, 2)
    decode(models, ["a", "b"])
    assert models.target.counts["conditions"] == 32
    assert models.target.counts["passes"] == 16
    steps = SAMPLING.steps  # of the head, for each of the 16 tokens
    assert (models.target.counts["head_calls"], models.target.depth.tolist()) == (16 * steps, [16 + 16 * steps] * 2)
    assert all(models.target.counts[f"{name}_seconds"] > 0 for name in ("network", "head"))
    models = make_pair(TARGET, 2)
    decode(models, ["a", "b"], cspd, gamma=4, prefill=0.0)
    assert models.target.counts["passes"] == 4  # four passes give 5 + 5 + 5 + 1 tokens
    assert models.draft.counts["conditions"] == 2 * (4 + 4 + 4 + 1)


@pytest.mark.parametrize(
    "iterations, schedule",
    [(0, "cosine"), (16, "constant"), (4, "constant"), (5, "cosine"), (16, "cosine"), (1, "cosine")],
)
def test_parallel_sampling_fills_the_image_once(iterations, schedule):
    counts = count_known(iterations, schedule, 16)
    assert counts[-1] == 16
    assert counts == sorted(counts)
    assert len(set(counts)) == (iterations or 16) or schedule == "cosine"
    if schedule == "cosine" and iterations == 5:
        assert counts == [1, 4, 7, 12, 16]  # as published: after each iteration the cosine's share is masked
    decoded = decode(make_pair(DRAFT, 2), ["a", "b"], iterations=iterations, schedule=schedule)
    assert decoded.tokens.isfinite().all()
    assert decoded.step.max() <= (iterations or 16)


# --- decoders on Gaussian mixtures, whose densities are in closed form


def decode_mixtures(n: int, **method_options):
    """Decode n images of three numbers on mixtures by `cspd`, two drafts at a time; return models and result."""
    models = make_mixtures(n, 3, 1)
    start = Start(torch.arange(3).expand(n, -1))
    steps = cspd(models, start, noise=counted_noise(5, range(n)), gamma=2, prefill=0.0, **method_options)
    return models, record(models, start, steps)


def test_only_a_sampler_that_gives_up_is_inexact():
    n = 20_000
    p = {}
    for name, method_options in (("exact", {}), ("gives up", {"tries": 1}), ("zero", {"tries": 1, "give_up": "zero"})):
        models, decoded = decode_mixtures(n, **method_options)
        tests = make_continuous_rows(
            decoded.tokens.numpy(), models.target.mixture, rng=np.random.default_rng(6), bins=4
        )
        p[name] = min(r["p_holm"] for r in tests if r["decides"])
        assert (decoded.gave_up > 0).float().mean() < 0.01 if name == "exact" else decoded.gave_up.sum() > n / 10
    assert p["exact"] > 0.01
    assert p["gives up"] < 1e-3
    assert p["zero"] < 1e-3


def test_giving_up_is_an_error_where_that_is_asked_for():
    with pytest.raises(DecodingError, match="none of 1 draws was accepted"):
        decode_mixtures(50, tries=1, give_up="error")


@pytest.mark.parametrize(
    ("models", "method_options", "message"),
    [
        (Pair(make_mixtures(2).target), {}, "the model has no draft"),
        (Pair(make_mixtures(2).target, make_mixtures(2, 4).draft), {}, r"\(5, 2, 1\) and \(4, 2, 1\)"),
        (make_mixtures(2), {"gamma": 6}, "gamma 6: allowed: at most the 5 tokens"),
    ],
)
def test_a_pair_that_does_not_fit_is_one_line(models, method_options, message):
    start = Start(torch.arange(5).expand(2, -1))
    with pytest.raises(DecodingError, match=message):
        next(cspd(models, start, noise=counted_noise(0, range(2)), **{"gamma": 2} | method_options))
    with pytest.raises(DecodingError, match="iterations 6: allowed: at most the 5 tokens"):
        next(mar(models, start, noise=counted_noise(0, range(2)), iterations=6))


# --- densities of whole walks, from noise to a token


class TrainedHead(torch.nn.Module):
    """A head that predicts the noise as a trained one does; an untrained one sends x_0 far away at the noisiest step.
    `tilt` sets how its prediction and variance depend on the condition."""

    def __init__(self, tilt: float):
        super().__init__()
        self.cond_embed = torch.nn.Identity()
        self.tilt = tilt

    def run(self, x, t, condition):
        """Predict the noise in x [n, 4] at step t as for a clean token that depends on the condition, and a
        variance."""
        clean = 0.3 + self.tilt * condition[:, :4]
        ab = make_schedule(TRAINED).alpha_bar[t][:, None]
        return torch.cat([(x - ab.sqrt() * clean) / (1 - ab).sqrt(), torch.tanh(self.tilt * 20 + condition[:, :4])], -1)


def make_walk(tilt: float, n: int) -> Steps:
    """Make the steps of n walks with a TrainedHead, under n equal conditions."""
    return Steps(TrainedHead(tilt), SAMPLING, torch.linspace(-1, 1, 4).double().expand(n, -1))


def draw_path(n: int) -> list[torch.Tensor]:
    """Draw the noise of n walks, a tensor [n, 4] for each step and one for the start."""
    return [torch.randn(n, 4, generator=torch.Generator().manual_seed(i)).double() for i in range(SAMPLING.steps + 1)]


def test_the_ratio_of_aligned_paths_is_that_of_their_last_steps():
    """Eq. 9 against the product of all steps' densities (eq. 4), each path's under its model."""
    n = 5
    noise = draw_path(n)
    p, q = make_walk(0.02, n), make_walk(0.03, n)
    x = {"p": noise[-1], "q": noise[-1]}
    total = torch.zeros(n).double()
    for i in range(SAMPLING.steps, 0, -1):
        for name, steps, sign in (("q", q, -1), ("p", p, 1)):
            mean, std = steps.distribution(x[name], i)
            # Both walks end in the draft's x_0.
            next_x = mean + std * noise[i - 1] if i > 1 or name == "q" else x["q"]
            total += sign * torch.distributions.Normal(mean, std).log_prob(next_x).sum(-1)
            x[name] = next_x
    walks = [walk(s, noise.__getitem__) for s in (p, q)]
    x0 = walks[1].sample(noise.__getitem__)
    log_sigma = walks[1].log_sigma - walks[0].log_sigma
    last_ratio = walks[0].log_density(x0) - walks[1].log_density(x0)
    assert torch.allclose(total, last_ratio + log_sigma, rtol=1e-9, atol=1e-9)
    # The released code has the inverse of Sigma, which gives another density.
    assert not torch.allclose(total, last_ratio - log_sigma, rtol=1e-3)
