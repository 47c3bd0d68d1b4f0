"""Continuous models of any length whose conditionals are known.

Regimes   a Markov chain of regimes, in each of which a token is Gaussian: mixtures by the forward algorithm
Turning   a token is the one `stride` before it, rotated, shrunk and with noise added: Gaussians at any distance

Both give the distribution of a rank from the first `n_known` tokens, also where the tokens between are unknown.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from parity_decoders.protocols.continuous import PathNoise
from torch import Tensor

from parity.models.continuous.tabular import MixtureDistribution, MixtureWalk, walk_mixture


class Rule(Protocol):
    dim: int

    def compute_distributions(self, tokens: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        """Compute the distributions of B n tokens, of `ranks` [B, n], given the first `n_known` [B, n] of [B, L, D]."""
        ...


class Regimes:
    """The distributions of a chain of K regimes: begin [K], step [K, K]; means, scales [K, D] of the tokens in each."""

    def __init__(self, begin: Tensor, step: Tensor, means: Tensor, scales: Tensor):
        self.begin = begin
        self.step = step
        self.means = means
        self.scales = scales
        self.dim = means.shape[1]

    def compute_distributions(self, tokens: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        B = len(tokens)
        n_read = int(n_known.max())
        z = (tokens[:, :n_read, None].double() - self.means) / self.scales  # [B, i, K, D]
        evidence = (-0.5 * z * z - self.scales.log()).sum(-1)
        evidence = (evidence - evidence.amax(-1, keepdim=True)).exp()
        belief = [self.begin.expand(B, -1)]
        for likelihood in evidence.unbind(1):
            posterior = belief[-1] * likelihood
            belief.append((posterior / posterior.sum(1, keepdim=True)) @ self.step)
        weights = torch.stack(belief, 1).gather(1, n_known[..., None].expand(-1, -1, len(self.begin))).flatten(0, 1)
        distance = (ranks - n_known).flatten()
        for i in range(int(distance.max())):
            weights = torch.where((distance > i)[:, None], weights @ self.step, weights)
        shape = (ranks.numel(), *self.means.shape)
        return MixtureDistribution(weights.log(), self.means.expand(shape), self.scales.expand(shape))


class Turning:
    """x_i = keep * turn x_{i - stride} + noise, where turn [D, D] is a rotation, keep < 1, and the noise such that a
    token's distribution is N(0, I) wherever nothing is known."""

    def __init__(self, keep: float, turn: Tensor, stride: int):
        self.keep = keep
        self.turn = turn
        self.stride = stride
        self.dim = len(turn)

    def compute_distributions(self, tokens: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        n_back = (ranks - n_known).div(self.stride, rounding_mode="floor") + 1  # counts steps back to a known token
        source = ranks - n_back * self.stride
        index = source.clamp(min=0)[..., None].expand(-1, -1, self.dim)
        powers = torch.stack([torch.linalg.matrix_power(self.turn, m) for m in range(int(n_back.max()) + 1)])
        share = torch.where(source >= 0, self.turn.new_tensor(self.keep) ** n_back, 0.0)
        mean = share[..., None] * (powers[n_back] @ tokens.double().gather(1, index)[..., None])[..., 0]
        scale = (1 - share**2).sqrt()[..., None].expand_as(mean)
        log_weights = torch.zeros(ranks.numel(), 1, dtype=mean.dtype)
        return MixtureDistribution(log_weights, mean.flatten(0, 1)[:, None], scale.flatten(0, 1)[:, None])


@dataclass
class LongMixture:
    """A rule as a `ContinuousModel` in raster order, in float64; its tokens are drawn in `steps`."""

    rule: Rule
    length: int
    steps: int = 1
    raster: bool = True

    def __post_init__(self) -> None:
        self.dim = self.rule.dim

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        by_rank = tokens.gather(1, order[..., None].expand_as(tokens))
        return self.rule.compute_distributions(by_rank, ranks, n_known.expand_as(ranks))

    def distribution(self, condition: Any, path: PathNoise) -> MixtureDistribution:
        return walk_mixture(condition, self.steps, path)

    def chain(self, condition: Any) -> MixtureWalk:
        return MixtureWalk(condition, self.steps)

    def take(self, rows: Tensor) -> "LongMixture":
        return self
