"""Decoders of continuous tokens: the target alone, and continuous speculative decoding with its departures."""

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
from parity.equality.targets.continuous import continuous_rows
from parity.models.continuous.diffusion import (
    TRAINED,
    HeadSampling,
    Steps,
    make_schedule,
    walk,
)
from parity.models.continuous.mar import MAR, MARConfig, MARNet
from tests.tables import make_mixtures

CONFIG = MARConfig(
    classes=6, grid=4, dim=4, width=32, encoder=1, decoder=1, heads=2, buffer=2, head_width=32, head_depth=1
)
SAMPLING = HeadSampling(steps=5, guidance=2.0)


def network(seed: int, spread: float = 0.1) -> MARNet:
    torch.manual_seed(seed)
    net = MARNet(CONFIG).double().eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=spread)
    return net


TARGET, DRAFT = network(0), network(1)


def pair(draft: MARNet, n: int) -> Pair:
    labels = torch.arange(n) % CONFIG.classes
    each = (MAR(net, labels, SAMPLING) for net in (TARGET, draft))
    return Pair(*(Clocked.clock_batch(model, labels[:, None]) for model in each))


def decode(models: Pair, ids: list[str], method=mar, **given):
    noise = batch_noise(0, ids, dtype=torch.float64)
    start = Start(draw_order(noise, len(ids), CONFIG.tokens, False))
    return record(models, start, method(models, start, noise=noise, **given))


# --- on networks


@pytest.mark.parametrize("given", [{}, {"gamma": 1, "prefill": 0.0}, {"gamma": 16, "prefill": 0.3}])
def test_a_draft_model_that_is_the_target_leaves_plain_sampling(given):
    ids = [str(i) for i in range(3)]
    plain, fast = decode(pair(TARGET, 3), ids), decode(pair(TARGET, 3), ids, cspd, **given)
    assert (plain.tokens - fast.tokens).abs().max() < 1e-9
    assert (fast.accepted != 0).all()
    assert (fast.steps <= plain.steps).all()
    other = decode(pair(DRAFT, 3), ids, cspd, **given)
    assert (plain.tokens - other.tokens).abs().max() > 1e-3  # the comparison can fail


def test_a_step_asks_the_target_once_and_the_draft_model_once_a_draft():
    models = pair(DRAFT, 2)
    decode(models, ["a", "b"])
    assert models.target.counts["conditions"] == 32
    assert models.target.counts["passes"] == 16
    models = pair(TARGET, 2)
    decode(models, ["a", "b"], cspd, gamma=4, prefill=0.0)
    assert models.target.counts["passes"] == 4  # 5 + 5 + 5 + 1 tokens
    assert models.draft.counts["conditions"] == 2 * (4 + 4 + 4 + 1)


@pytest.mark.parametrize(
    "iterations, schedule",
    [(0, "cosine"), (16, "constant"), (4, "constant"), (5, "cosine"), (16, "cosine"), (1, "cosine")],
)
def test_parallel_sampling_fills_the_image_once(iterations, schedule):
    known = count_known(iterations, schedule, 16)
    assert known[-1] == 16
    assert known == sorted(known)
    assert len(set(known)) == (iterations or 16) or schedule == "cosine"
    if schedule == "cosine" and iterations == 5:
        assert known == [1, 4, 7, 12, 16]  # as published: the cosine's share stays masked
    done = decode(pair(DRAFT, 2), ["a", "b"], iterations=iterations, schedule=schedule)
    assert done.tokens.isfinite().all()
    assert done.step.max() <= (iterations or 16)


# --- on mixtures, whose densities are in closed form


def on_mixtures(n: int, **given):
    models = make_mixtures(n, 3, 1)
    start = Start(torch.arange(3).expand(n, -1))
    steps = cspd(models, start, noise=counted_noise(5, range(n)), gamma=2, prefill=0.0, **given)
    return models, record(models, start, steps)


def test_on_a_mixture_it_is_exact_and_a_sampler_that_gives_up_is_not():
    n, p = 20_000, {}
    for name, given in (("exact", {}), ("gives up", {"tries": 1}), ("zero", {"tries": 1, "give_up": "zero"})):
        models, done = on_mixtures(n, **given)
        tests = continuous_rows(done.tokens.numpy(), models.target.mixture, rng=np.random.default_rng(6), bins=4)
        p[name] = min(r["p_holm"] for r in tests if r["decides"])
        assert (done.gave_up > 0).float().mean() < 0.01 if name == "exact" else done.gave_up.sum() > n / 10
    assert p["exact"] > 0.01
    assert p["gives up"] < 1e-3
    assert p["zero"] < 1e-3


@pytest.mark.parametrize("give_up", ["target", "zero", "error"])
def test_giving_up_is_an_error_or_counted(give_up):
    if give_up == "error":
        with pytest.raises(DecodingError, match="none of 1 draws was accepted"):
            on_mixtures(50, tries=1, give_up=give_up)
    else:
        _, done = on_mixtures(50, tries=1, give_up=give_up)
        assert done.gave_up.sum() > 0
        assert (done.tokens == 0).any() == (give_up == "zero")


@pytest.mark.parametrize(
    ("models", "given", "words"),
    [
        (Pair(make_mixtures(2).target), {}, "the model has no draft"),
        (Pair(make_mixtures(2).target, make_mixtures(2, 4).draft), {}, r"\(5, 2, 1\) and \(4, 2, 1\)"),
        (make_mixtures(2), {"gamma": 6}, "gamma 6: allowed: at most the 5 tokens"),
    ],
)
def test_a_pair_that_does_not_fit_is_one_line(models, given, words):
    start = Start(torch.arange(5).expand(2, -1))
    with pytest.raises(DecodingError, match=words):
        next(cspd(models, start, noise=counted_noise(0, range(2)), **{"gamma": 2} | given))
    with pytest.raises(DecodingError, match="iterations 6: allowed: at most the 5 tokens"):
        next(mar(models, start, noise=counted_noise(0, range(2)), iterations=6))


# --- trajectories


class Gentle(torch.nn.Module):
    """A head that knows the noise well, as a trained one does: an untrained one sends x_0 far away at the noisiest
    step."""

    def __init__(self, tilt: float):
        super().__init__()
        self.cond_embed, self.tilt = torch.nn.Identity(), tilt

    def run(self, x, t, condition):
        clean = 0.3 + self.tilt * condition[:, :4]
        ab = make_schedule(TRAINED).alpha_bar[t][:, None]
        return torch.cat([(x - ab.sqrt() * clean) / (1 - ab).sqrt(), torch.tanh(self.tilt * 20 + condition[:, :4])], -1)


def gentle(tilt: float, n: int) -> Steps:
    return Steps(Gentle(tilt), SAMPLING, torch.linspace(-1, 1, 4).double().expand(n, -1))


def path_of(n: int) -> list[torch.Tensor]:
    return [torch.randn(n, 4, generator=torch.Generator().manual_seed(i)).double() for i in range(SAMPLING.steps + 1)]


def test_the_ratio_of_two_aligned_paths_is_that_of_their_deviations_and_last_steps():
    """Eq. 9 against the product of all steps' densities (eq. 4), each trajectory's under its own model."""
    n, noise = 5, path_of(5)
    p, q = gentle(0.02, n), gentle(0.03, n)
    x = {"p": noise[-1], "q": noise[-1]}
    total = torch.zeros(n).double()
    for i in range(SAMPLING.steps, 0, -1):
        for name, steps, sign in (("q", q, -1), ("p", p, 1)):
            mean, std = steps.law(x[name], i)
            after = mean + std * noise[i - 1] if i > 1 or name == "q" else x["q"]  # both end in the draft's x_0
            total += sign * torch.distributions.Normal(mean, std).log_prob(after).sum(-1)
            x[name] = after
    two = [walk(s, noise.__getitem__) for s in (p, q)]
    x0, log_sigma = two[1].sample(noise.__getitem__), two[1].log_sigma - two[0].log_sigma
    last = two[0].log_density(x0) - two[1].log_density(x0)
    assert torch.allclose(total, last + log_sigma, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(total, last - log_sigma, rtol=1e-3)  # the inverse Sigma, as released
