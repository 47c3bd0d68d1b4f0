"""Continuous models with a known joint: mixtures over whole sequences, whose conditionals are mixtures.

Within a component tokens are independent; across components they depend on each other. So every conditional has a known
density and distribution function, in any order, and the Rosenblatt transform maps the distribution to the uniform
distribution on a cube.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.protocols.continuous import LOG_2PI, Affine, PathNoise
from scipy import special, stats
from torch import Tensor

from parity.base.errors import ParityError
from parity.models.continuous.diffusion import walk


class Mixture(NamedTuple):
    """A mixture of K Gaussians over sequences of L tokens: weights [K], means and scales [K, L, D]."""

    weights: np.ndarray
    means: np.ndarray
    scales: np.ndarray

    def posterior(self, prefix: np.ndarray) -> np.ndarray:
        """Compute the weights [n, K] of the components given the tokens so far, prefix [n, i, D]."""
        i = prefix.shape[1]
        z = (prefix[:, None] - self.means[:, :i]) / self.scales[:, :i]
        log = np.log(self.weights) - (0.5 * z * z + np.log(self.scales[:, :i])).sum((-2, -1))
        return special.softmax(log, axis=1)

    def draw(self, prefix: np.ndarray, rng: np.random.Generator, temperature: float = 1.0) -> np.ndarray:
        """Draw one token [n, D] for each prefix [n, i, D]: a component, then its normal (scale times `temperature`)."""
        w = self.posterior(prefix)
        k = (rng.random((len(w), 1)) > w.cumsum(1)).sum(1).clip(max=w.shape[1] - 1)
        i = prefix.shape[1]
        return self.means[k, i] + temperature * self.scales[k, i] * rng.standard_normal((len(w), self.means.shape[2]))

    def rosenblatt(self, x: np.ndarray) -> np.ndarray:
        """Compute u [n, L D] of samples x [n, L, D]: each coordinate's CDF given the coordinates before it."""
        n, L, D = x.shape
        flat = x.reshape(n, L * D)
        means = self.means.reshape(-1, L * D)
        scales = self.scales.reshape(-1, L * D)
        log = np.tile(np.log(self.weights), (n, 1))
        u = np.empty((n, L * D))
        for j in range(L * D):
            x_j = flat[:, j : j + 1]
            u[:, j] = (special.softmax(log, axis=1) * stats.norm.cdf(x_j, means[:, j], scales[:, j])).sum(1)
            log += stats.norm.logpdf(x_j, means[:, j], scales[:, j])
        return u.clip(0, 1)


def random_mixture(rng: np.random.Generator, components: int = 3, length: int = 3, dimensions: int = 1) -> Mixture:
    """Draw a mixture of overlapping components: means of deviation 1, scales between 0.5 and 1."""
    shape = (components, length, dimensions)
    return Mixture(rng.dirichlet(np.full(components, 5.0)), rng.standard_normal(shape), rng.uniform(0.5, 1.0, shape))


def exact_sampler(model: Mixture, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Draw samples [rows, L, D] of a mixture token by token, each from its distribution given those before it."""
    x = np.empty((rows, 0, model.means.shape[2]))
    for _ in range(model.means.shape[1]):
        x = np.concatenate([x, model.draw(x, rng)[:, None]], 1)
    return x


class MixtureDistribution(NamedTuple):
    """Distributions of N tokens, each a mixture of K Gaussians with diagonal covariance."""

    log_weights: Tensor  # [N, K]
    means: Tensor  # [N, K, D]
    scales: Tensor  # [N, K, D]

    @property
    def log_sigma(self) -> Tensor:
        return torch.zeros_like(self.log_weights[:, 0])

    def sample(self, path: PathNoise) -> Tensor:
        """Draw tokens [N, D]. path(1)'s first number, as a uniform, chooses the component, path(0) is its noise."""
        u = torch.special.ndtr(path(1)[:, :1])
        k = (u > self.log_weights.exp().cumsum(1)).sum(1).clamp(max=self.log_weights.shape[1] - 1)
        rows = torch.arange(len(k), device=k.device)
        return self.means[rows, k] + self.scales[rows, k] * path(0)

    def propose(self, path: PathNoise) -> Tensor:
        return self.sample(path)

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        """Compute log p(x) [N], in nats, of tokens x [N, D]. Raises ParityError unless `inner` is 1."""
        if inner != 1:
            raise ParityError(f"inner_temperature {inner}: allowed: 1, since a mixture has no residuals of its own")
        z = (x[:, None] - self.means) / self.scales
        log_densities = self.log_weights + (-0.5 * z * z - self.scales.log()).sum(-1)
        return log_densities.logsumexp(1) - 0.5 * LOG_2PI * x.shape[-1]

    def rows(self, which: Tensor) -> "MixtureDistribution":
        return MixtureDistribution(self.log_weights[which], self.means[which], self.scales[which])


@dataclass
class MixtureWalk:
    """A mixture as a `Chain` of T steps whose x_0 follows it exactly; T = 1 is `MixtureDistribution.sample`.

    The first number of x_1 chooses the component, whose Gaussian is the last step. The steps before keep N(0, I):
    x_{i-1} = r g(x_i) + (1 - r^2)^1/2 n, where r depends on step and condition, and g turns the sign of numbers beyond
    1. So steps are nonlinear, have noise and depend on their condition.
    """

    distribution: MixtureDistribution
    steps: int = 1
    last = "noise"
    noisy = True

    @property
    def prior(self) -> Tensor:
        D = self.distribution.means.shape[-1]
        return torch.cat([torch.full((2 * D,), 0.5), torch.zeros(D), torch.ones(D)]).to(self.distribution.means)

    def predict(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Compute at points x [N, D] or [N, K, D] of steps i what `gaussian` needs, [..., 4 D]: slope and deviation of
        a step, mean and scale of the component that the point chooses."""
        N, D = x.shape[0], x.shape[-1]
        step = (x.new_full(x.shape[:-1], i) if isinstance(i, int) else i.to(x.dtype)).reshape(N, -1)
        points = x.reshape(N, -1, D)
        w = self.distribution.log_weights.exp()
        phase = step[..., None] + 3 * w[:, None, :1] + torch.arange(D, device=x.device)
        r = 0.9 * phase.cos()
        u = torch.special.ndtr(points[..., :1])
        k = (u > w.cumsum(1)[:, None]).sum(-1).clamp(max=w.shape[1] - 1)
        rows = torch.arange(N, device=x.device)[:, None]
        slopes = torch.where(points.abs() < 1, r, -r)
        parameters = [slopes, (1 - r * r).sqrt(), self.distribution.means[rows, k], self.distribution.scales[rows, k]]
        return torch.cat(parameters, -1).reshape(*x.shape[:-1], 4 * D)

    def predict_where(self, mask: Tensor, x: Tensor, i: Tensor) -> Tensor:
        return self.predict(x, i)[mask]

    def gaussian(self, i: int | Tensor, prediction: Tensor) -> Affine:
        slopes, spread, mean, scale = prediction.chunk(4, -1)
        final = torch.as_tensor(i == 1, device=mean.device)[..., None]
        return Affine(mean * final, slopes * ~final, torch.where(final, scale, spread))

    def __len__(self) -> int:
        return len(self.distribution.log_weights)

    def take(self, which: Tensor) -> "MixtureWalk":
        return MixtureWalk(self.distribution.rows(which), self.steps)


def walk_mixture(condition: MixtureDistribution, steps: int, path: PathNoise) -> MixtureDistribution:
    """Compute the distribution at the end of a walk of `steps` with the noise `path`: for one step the mixture itself,
    for more the Gaussian of the component that the walk chose."""
    if steps == 1:
        return condition
    end = walk(MixtureWalk(condition, steps), path)
    return MixtureDistribution(torch.zeros_like(end.mean[:, :1]), end.mean[:, None], end.std[:, None])


@dataclass
class TabularMixture:
    """A `Mixture` as a `ContinuousModel`, in float64. Every conditional is exact, in any order and for positions whose
    predecessors are unknown, because the posterior of the component has a closed form."""

    mixture: Mixture
    rows: int
    raster: bool = True
    steps: int = 1  # a token is drawn by a walk of this many steps

    def __post_init__(self) -> None:
        self.length, self.dim = self.mixture.means.shape[1:]

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> MixtureDistribution:
        """Compute the distributions of B*n tokens, of ranks [B, n], given those of the first n_known ranks of
        `order`."""
        weights, means, scales = (torch.as_tensor(v, dtype=torch.float64, device=tokens.device) for v in self.mixture)
        z = (tokens.double()[:, None] - means) / scales  # [B, K, L, D]
        evidence = (-0.5 * z * z - scales.log()).sum(-1).transpose(1, 2)  # [B, L, K], less a constant
        evidence = evidence.gather(1, order[..., None].expand(-1, -1, len(weights)))
        evidence = F.pad(evidence.cumsum(1), (0, 0, 1, 0))  # now of the first i ranks together, i = 0 .. L
        log = weights.log() + evidence.gather(1, n_known.expand_as(ranks)[..., None].expand(-1, -1, len(weights)))
        position = order.gather(1, ranks).flatten()
        means, scales = (v[:, position].transpose(0, 1) for v in (means, scales))
        return MixtureDistribution(log.flatten(0, 1).log_softmax(-1), means, scales)

    def distribution(self, condition: Any, path: PathNoise) -> MixtureDistribution:
        return walk_mixture(condition, self.steps, path)

    def chain(self, condition: Any) -> MixtureWalk:
        return MixtureWalk(condition, self.steps)

    def take(self, rows: Tensor) -> "TabularMixture":
        return TabularMixture(self.mixture, len(rows), self.raster, self.steps)
