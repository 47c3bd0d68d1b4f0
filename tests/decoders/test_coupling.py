"""Couplings of Gaussians, and the decoders of diffusion heads that are made of them: exact in law and in noise."""

from itertools import pairwise

import pytest
import torch
from parity_decoders.continuous import coupled as jacobi
from parity_decoders.continuous.coupled import coupled
from parity_decoders.continuous.mar import mar
from parity_decoders.continuous.spec_head import spec_head
from parity_decoders.coupling import couple, draw_residual
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order
from scipy import stats

from parity.base.row_noise import batch_noise
from parity.decode.continuous import record
from parity.equality.faults import altered
from parity.equality.faults.continuous import inverted, redrawn
from parity.models.continuous.diffusion import HeadSampling
from parity.models.continuous.mar import MAR, MARConfig, MARNet
from parity.models.continuous.tabular import TabularMixture
from parity.models.continuous.xar import XAR, XARConfig, XARNet
from tests.tables import make_mixtures

N, D = 40_000, 3
Q = (torch.tensor([0.3, -1.0, 2.0]).double(), torch.tensor([1.0, 0.7, 2.0]).double())
SHIFTED = (Q[0] + Q[1] * torch.tensor([0.4, -0.2, 0.1]), Q[1])
P = (SHIFTED[0], Q[1] * torch.tensor([1.1, 0.8, 1.0]))


def drawn(p, by=couple, n=N):
    """Draws of q coupled to p, in p's deviations, and whether each stayed."""
    noise, index = counted_noise(1, range(n)), torch.zeros(n, 1, dtype=torch.int64)
    x = Q[0] + Q[1] * noise.normal("draft", index, D)
    laws = [tuple(v.expand(n, 1, D) for v in law) for law in (Q, p)]
    new, kept = by(x, *laws, noise, index)
    assert torch.equal((new == x).all(-1), kept)
    return ((new - p[0]) / p[1])[:, 0].numpy(), kept[:, 0]


def smallest(n):
    """The smallest p-value of a few tests that numbers [n, D] are independent standard normals."""
    each = [stats.kstest(n[:, d], "norm", method="asymp").pvalue for d in range(D)]
    return min(*each, *(stats.spearmanr(n[:, a], n[:, b]).pvalue for a, b in pairwise(range(D))))


@pytest.mark.parametrize("p", [SHIFTED, P])
def test_a_coupled_draw_has_the_new_law(p):
    assert smallest(drawn(p)[0]) > 1e-3
    assert smallest(drawn(p, redrawn)[0]) < 1e-6


def test_the_wrong_deviation_is_noticed():
    assert smallest(drawn(P, inverted)[0]) < 1e-6


def test_means_apart_keep_as_many_draws_as_any_coupling_may():
    shift = float(((SHIFTED[0] - Q[0]) / Q[1]).norm())
    most = 2 * stats.norm.cdf(-shift / 2)
    assert abs(float(drawn(SHIFTED)[1].double().mean()) - most) < 4 * (most * (1 - most) / N) ** 0.5
    assert drawn(Q)[1].all()


@pytest.mark.parametrize("ratio", [1.0 + 1e-6, 0.5, 1e4])
def test_the_residual_of_deviations_is_drawn_in_bounded_tries(ratio):
    """(p - r)+ of one number, its law by quadrature; a ratio near one does not slow it."""
    n = draw_residual(torch.full((N, 1), ratio).double(), counted_noise(2, range(N)), torch.arange(N))[:, 0].numpy()
    at = torch.linspace(-8, 8, 40_001).double().numpy()
    surplus = (stats.norm.pdf(at) - stats.norm.pdf(at * ratio**0.5) * ratio**0.5).clip(min=0)
    law = surplus.cumsum() / surplus.sum()
    assert stats.kstest(n, lambda x: law[at.searchsorted(x).clip(max=len(at) - 1)], method="asymp").pvalue > 1e-3
    assert stats.kstest(n, "norm", method="asymp").pvalue < 1e-6


def network(family):
    """A random network of each family whose head walks in Gaussian steps, in float64, and orders of its places."""
    torch.manual_seed(0)
    if family == "mar":
        sizes = {"classes": 3, "grid": 3, "dim": 2, "width": 16, "heads": 2, "buffer": 1, "head_width": 16}
        net = MARNet(MARConfig(**sizes, encoder=1, decoder=1, head_depth=1)).double()
    else:
        net = XARNet(XARConfig(classes=3, grid=4, cell=2, dim=2, width=16, encoder=1, decoder=1, heads=2)).double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.25)
    return net.eval()


def model(family, rows=2, **given):
    settings = HeadSampling(**({"steps": 6, "guidance": 2.0, "clip": 3.0 if family == "mar" else 0.0} | given))
    if family == "mixture":
        return TabularMixture(make_mixtures(rows)[0].mixture, rows, raster=False, steps=4)
    return (MAR if family == "mar" else XAR)(network(family), torch.arange(rows) % 3, settings)


def started(target, rows=2):
    noise = batch_noise(0, [str(b) for b in range(rows)], dtype=torch.float64)
    return noise, Start(draw_order(noise, rows, target.length, target.raster))


def with_noise(steps, target, start):
    """Tokens [B, L, D] by place and the noise [B, L, T + 1, D] that a decoder says they stand for."""
    B, L = start.order.shape
    tokens, noise = torch.zeros(B, L, target.dim).double(), torch.zeros(B, L, target.steps + 1, target.dim).double()
    at = torch.zeros(B, dtype=torch.int64)
    for step in steps:
        for b, k in enumerate(step.kept.tolist()):
            tokens[b, at[b] : at[b] + k], noise[b, at[b] : at[b] + k] = step.tokens[b, :k], step.noise[b, :k]
        at += step.kept
    return tokens, noise


def plain_under(target, start, noise):
    """What plain decoding draws, by place, of noise [B, L, T + 1, D]."""
    order, (B, L), tokens = start.order, start.order.shape, []
    grid = torch.zeros(B, L, target.dim).double()
    for place in range(L):
        at = torch.full((B, 1), place)
        path = lambda i, place=place: noise[:, place, i]  # noqa: E731
        tokens.append(target.law(target.conditions(grid, order, at, at), path).sample(path))
        grid = grid.scatter(1, order[:, place, None, None].expand(-1, -1, target.dim), tokens[-1][:, None])
    return torch.stack(tokens, 1)


METHODS = [
    (spec_head, {"ahead": 3}), (spec_head, {"ahead": 3, "draft": "frozen"}), (coupled, {"sweeps": 2}),
    (coupled, {"window": 2, "theta": 1.0}), (coupled, {"sweeps": 4, "reads": "drafts"}),
]  # fmt: skip


@pytest.mark.parametrize("family", ["mixture", "mar", "xar"])
@pytest.mark.parametrize(("method", "given"), METHODS)
@torch.inference_mode()
def test_the_image_is_plain_decodings_under_the_moved_noise(family, method, given):
    target = model(family)
    noise, start = started(target)
    tokens, moved = with_noise(method(Pair(target), start, noise=noise, **given), target, start)
    assert (plain_under(target, start, moved) - tokens).abs().max() < 1e-9
    own = noise.normal("sample", torch.arange(moved[0, :, :, 0].numel()).view(moved.shape[1:3])[None], target.dim)
    assert (moved != own).any()  # some of it did move


@torch.inference_mode()
def test_noise_that_was_not_moved_is_noticed():
    """The law does not show this fault: the noise kept is fresh whenever it is used. The image does."""

    def stale(walks, *given):
        return jacobi.sweep(walks, *given)._replace(z=walks.z)

    target = model("mar")
    noise, start = started(target)
    faulty = altered("parity_decoders.continuous.coupled", sweep=stale).coupled
    tokens, moved = with_noise(faulty(Pair(target), start, noise=noise, theta=1.0), target, start)
    assert (plain_under(target, start, moved) - tokens).abs().max() > 1e-3


@pytest.mark.parametrize(("method", "given"), METHODS)
@torch.inference_mode()
def test_the_moved_noise_is_normal_and_independent(method, given):
    target = model("mixture", 2000)
    noise, start = started(target, 2000)
    _, moved = with_noise(method(Pair(target), start, noise=noise, **given), target, start)
    flat = moved.flatten(1).numpy()
    assert stats.kstest(flat.ravel(), "norm", method="asymp").pvalue > 1e-3
    between = stats.spearmanr(flat).statistic  # of places, steps and numbers
    apart = between[~torch.eye(len(between), dtype=torch.bool).numpy()]
    assert abs(apart).max() < 5 / 2000**0.5


@pytest.mark.parametrize("family", ["mixture", "mar", "xar"])
@torch.inference_mode()
def test_the_path_without_tolerance_is_plain_decoding(family):
    target = model(family)
    noise, start = started(target)
    plain = record(Pair(target), start, mar(Pair(target), start, noise=noise)).tokens
    path = record(Pair(target), start, coupled(Pair(target), start, noise=noise, law="path", eps=0.0)).tokens
    near = record(Pair(target), start, coupled(Pair(target), start, noise=noise, law="path", eps=0.05)).tokens
    assert (path - plain).abs().max() < 1e-9
    assert (near - plain).abs().max() <= 0.05


@pytest.mark.parametrize("method", [spec_head, coupled])
def test_steps_without_noise_are_refused(method):
    target = model("mar", sampler="ddim", eta=0.0)
    noise, start = started(target)
    with pytest.raises(DecodingError, match=r"eta 0.*allowed: eta above 0") as told:
        list(method(Pair(target), start, noise=noise))
    assert "\n" not in str(told.value)
