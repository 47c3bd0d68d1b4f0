"""Couplings of Gaussians, and the decoders of diffusion heads made of them, are exact in distribution and in noise."""

from dataclasses import dataclass, field, replace
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
from parity_decoders.protocols.continuous import Affine, Pair, Start, draw_order
from scipy import stats
from torch import Tensor

from parity.base.row_noise import batch_noise
from parity.decode.continuous import record
from parity.models.continuous.diffusion import HeadSampling, walk
from parity.models.continuous.mar import MAR, MARConfig, MARNet
from parity.models.continuous.tabular import TabularMixture
from parity.models.continuous.xar import XAR, XARConfig, XARNet
from tests.equality.faults import patch_module
from tests.equality.faults.continuous import couple_by_inverse, couple_without_residual
from tests.tables import make_mixtures

N, D = 40_000, 3
Q = (torch.tensor([0.3, -1.0, 2.0]).double(), torch.tensor([1.0, 0.7, 2.0]).double())
SHIFTED = (Q[0] + Q[1] * torch.tensor([0.4, -0.2, 0.1]), Q[1])
P = (SHIFTED[0], Q[1] * torch.tensor([1.1, 0.8, 1.0]))


def draw_coupled(p, coupling=couple, n=N):
    """Draw n vectors from the Gaussian p = (mean, deviation) by coupling to draws of Q; return the draws standardised
    by p [n, D], and whether each stayed equal to its draw of Q [n]."""
    noise, index = counted_noise(1, range(n)), torch.zeros(n, 1, dtype=torch.int64)
    x = Q[0] + Q[1] * noise.normal("draft", index, D)
    distributions = [tuple(v.expand(n, 1, D) for v in distribution) for distribution in (Q, p)]
    draws, stayed = coupling(x, *distributions, noise, index)
    assert torch.equal((draws == x).all(-1), stayed)
    return ((draws - p[0]) / p[1])[:, 0].numpy(), stayed[:, 0]


def compute_smallest_p(n):
    """Compute the smallest p-value of tests that n [n, D] is standard normal and its columns uncorrelated."""
    p_values = [stats.kstest(n[:, d], "norm", method="asymp").pvalue for d in range(D)]
    return min(*p_values, *(stats.spearmanr(n[:, a], n[:, b]).pvalue for a, b in pairwise(range(D))))


@pytest.mark.parametrize("p", [SHIFTED, P])
def test_a_coupled_draw_has_the_new_distribution(p):
    """Must fail: a draw from p in place of the residual, and the inverse ratio of deviations."""
    assert compute_smallest_p(draw_coupled(p)[0]) > 1e-3
    assert compute_smallest_p(draw_coupled(p, couple_without_residual)[0]) < 1e-6
    assert p is SHIFTED or compute_smallest_p(draw_coupled(p, couple_by_inverse)[0]) < 1e-6


def test_shifted_means_keep_as_many_draws_as_possible():
    shift = float(((SHIFTED[0] - Q[0]) / Q[1]).norm())
    share = 2 * stats.norm.cdf(-shift / 2)
    assert abs(float(draw_coupled(SHIFTED)[1].double().mean()) - share) < 4 * (share * (1 - share) / N) ** 0.5
    assert draw_coupled(Q)[1].all()


@pytest.mark.parametrize("ratio", [1.0 + 1e-6, 0.5, 1e4])
def test_the_residual_of_deviations_is_drawn(ratio):
    """(p - r)+ of one number has its distribution by quadrature; a ratio near one does not slow it."""
    n = draw_residual(torch.full((N, 1), ratio).double(), counted_noise(2, range(N)), torch.arange(N))[:, 0].numpy()
    grid = torch.linspace(-8, 8, 40_001).double().numpy()
    surplus = (stats.norm.pdf(grid) - stats.norm.pdf(grid * ratio**0.5) * ratio**0.5).clip(min=0)
    distribution = surplus.cumsum() / surplus.sum()
    assert (
        stats.kstest(n, lambda x: distribution[grid.searchsorted(x).clip(max=len(grid) - 1)], method="asymp").pvalue
        > 1e-3
    )
    assert stats.kstest(n, "norm", method="asymp").pvalue < 1e-6


def make_network(family):
    """Make a small random network, "mar" or "xar", in float64."""
    torch.manual_seed(0)
    if family == "mar":
        sizes = {"classes": 3, "grid": 3, "dim": 2, "width": 16, "heads": 2, "buffer": 1, "head_width": 16}
        net = MARNet(MARConfig(**sizes, encoder=1, decoder=1, head_depth=1)).double()
    else:
        net = XARNet(XARConfig(classes=3, grid=4, cell=2, dim=2, width=16, encoder=1, decoder=1, heads=2)).double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.25)
    return net.eval()


def make_model(family, rows=2, **fields):
    """Make a model of `rows` images, "mar", "xar" or "mixture"; `fields` replace settings of its sampler."""
    settings = HeadSampling(**({"steps": 6, "guidance": 2.0, "clip": 3.0 if family == "mar" else 0.0} | fields))
    if family == "mixture":
        return TabularMixture(make_mixtures(rows)[0].mixture, rows, raster=False, steps=4)
    return (MAR if family == "mar" else XAR)(make_network(family), torch.arange(rows) % 3, settings)


def draw_start(target, rows=2):
    """Draw the noise of `rows` images and the orders in which a target decodes them; return both."""
    noise = batch_noise(0, [str(b) for b in range(rows)], dtype=torch.float64)
    return noise, Start(draw_order(noise, rows, target.length, target.raster))


def collect_with_noise(steps, target, start):
    """Collect tokens [B, L, D] by rank and the noise [B, L, T + 1, D] that a decoder gives for them."""
    B, L = start.order.shape
    tokens = torch.zeros(B, L, target.dim).double()
    noise = torch.zeros(B, L, target.steps + 1, target.dim).double()
    ranks = torch.zeros(B, dtype=torch.int64)
    for step in steps:
        for b, k in enumerate(step.kept.tolist()):
            filled = slice(int(ranks[b]), int(ranks[b]) + k)
            tokens[b, filled] = step.tokens[b, :k]
            noise[b, filled] = step.noise[b, :k]
        ranks += step.kept
    return tokens, noise


def decode_plainly(target, start, noise):
    """Decode token by token with noise [B, L, T + 1, D], by rank and step; return tokens [B, L, D] by rank."""
    order = start.order
    B, L = order.shape
    tokens = []
    grid = torch.zeros(B, L, target.dim).double()
    for rank in range(L):
        ranks = torch.full((B, 1), rank)
        path = lambda i, rank=rank: noise[:, rank, i]  # noqa: E731
        tokens.append(target.distribution(target.conditions(grid, order, ranks, ranks), path).sample(path))
        grid = grid.scatter(1, order[:, rank, None, None].expand(-1, -1, target.dim), tokens[-1][:, None])
    return torch.stack(tokens, 1)


METHODS = [
    (spec_head, {"ahead": 3}), (spec_head, {"ahead": 3, "draft": "frozen"}), (coupled, {"sweeps": 2}),
    (coupled, {"window": 2, "theta": 1.0}), (coupled, {"sweeps": 4, "reads": "drafts"}),
]  # fmt: skip


@pytest.mark.parametrize("family", ["mixture", "mar", "xar"])
@pytest.mark.parametrize(("method", "method_options"), METHODS)
@torch.inference_mode()
def test_the_image_is_plain_decoding_with_the_moved_noise(family, method, method_options):
    target = make_model(family)
    noise, start = draw_start(target)
    tokens, moved = collect_with_noise(method(Pair(target), start, noise=noise, **method_options), target, start)
    assert (decode_plainly(target, start, moved) - tokens).abs().max() < 1e-9
    original = noise.normal("sample", torch.arange(moved[0, :, :, 0].numel()).view(moved.shape[1:3])[None], target.dim)
    assert (moved != original).any()  # the decoder did move noise, so that the test compares something


@torch.inference_mode()
def test_noise_that_was_not_moved_is_noticed():
    """Must fail: a decoder that keeps old noise, which is fresh when it is used: its distribution is right, its image
    not."""

    def sweep_with_old_noise(walks, *arguments):
        """Sweep as the decoder does, but report the noise from before the sweep."""
        return jacobi.sweep(walks, *arguments)._replace(z=walks.z)

    target = make_model("mar")
    noise, start = draw_start(target)
    faulty = patch_module("parity_decoders.continuous.coupled", sweep=sweep_with_old_noise).coupled
    tokens, moved = collect_with_noise(faulty(Pair(target), start, noise=noise, theta=1.0), target, start)
    assert (decode_plainly(target, start, moved) - tokens).abs().max() > 1e-3


@pytest.mark.parametrize(("method", "method_options"), METHODS)
@torch.inference_mode()
def test_the_moved_noise_is_normal_and_independent(method, method_options):
    target = make_model("mixture", 2000)
    noise, start = draw_start(target, 2000)
    _, moved = collect_with_noise(method(Pair(target), start, noise=noise, **method_options), target, start)
    flat = moved.flatten(1).numpy()
    assert stats.kstest(flat.ravel(), "norm", method="asymp").pvalue > 1e-3
    correlations = stats.spearmanr(flat).statistic  # correlations between all pairs of position, step and component
    off_diagonal = correlations[~torch.eye(len(correlations), dtype=torch.bool).numpy()]
    assert abs(off_diagonal).max() < 5 / 2000**0.5


@pytest.mark.parametrize("family", ["mixture", "mar", "xar"])
@torch.inference_mode()
def test_the_path_without_tolerance_is_plain_decoding(family):
    target = make_model(family)
    noise, start = draw_start(target)
    plain = record(Pair(target), start, mar(Pair(target), start, noise=noise)).tokens
    path = record(Pair(target), start, coupled(Pair(target), start, noise=noise, goal="path", eps=0.0)).tokens
    tolerant = record(Pair(target), start, coupled(Pair(target), start, noise=noise, goal="path", eps=0.05)).tokens
    assert (path - plain).abs().max() < 1e-9
    assert (tolerant - plain).abs().max() <= 0.05


@dataclass
class Growing:
    """A target of two tokens of a number, and the chain of their walks: x_{i-1} ~ N(2 x_i + c, 1), where c is `shift`
    times the first token's sign for the second one. A small move is doubled by each step."""

    steps: int
    shift: float
    offset: Tensor = field(default_factory=lambda: torch.zeros(1, 1).double())
    length, dim, raster, noisy, last = 2, 1, False, True, "noise"
    prior = torch.zeros(1).double()

    def conditions(self, tokens, order, ranks, n_known):
        first = tokens.gather(1, order[:, :1, None])[:, :, 0]
        return self.shift * torch.where((ranks == 1) & (n_known > 0), first.sign(), 0).flatten()[:, None]

    def chain(self, condition):
        return replace(self, offset=condition)

    def distribution(self, condition, path):
        return walk(self.chain(condition), path)

    def take(self, which):
        return replace(self, offset=self.offset[which]) if len(self.offset) > 1 else self

    def predict(self, x, i):
        return 2 * x + (self.offset if x.ndim == 2 else self.offset[:, None])

    def predict_where(self, mask, x, i):
        return self.predict(x, i)[mask]

    def gaussian(self, i, prediction):
        return Affine(prediction, torch.zeros_like(prediction), torch.ones_like(prediction))


@pytest.mark.parametrize(("steps", "shift", "within"), [(10, 1.5e-5, True), (20, 5e-9, False)])
@torch.inference_mode()
def test_moves_that_grow_a_thousandfold_stay_within_eps(steps, shift, within):
    """Must fail: a growth of a million, as no bound is known."""
    target = Growing(steps, shift)
    noise, start = draw_start(target)
    plain = record(Pair(target), start, mar(Pair(target), start, noise=noise)).tokens
    path = record(Pair(target), start, coupled(Pair(target), start, noise=noise, goal="path", eps=1e-3)).tokens
    assert ((path - plain).abs().max() <= 1e-3) == within


@pytest.mark.parametrize("method", [spec_head, coupled])
def test_steps_without_noise_are_refused(method):
    target = make_model("mar", sampler="ddim", eta=0.0)
    noise, start = draw_start(target)
    with pytest.raises(DecodingError, match=r"eta 0.*allowed: eta above 0"):
        list(method(Pair(target), start, noise=noise))
