"""What a continuous autoregressive model is to a decoder.

Words. An image is L tokens of D numbers. Its *order* is a permutation of the L grid positions; *rank* i is the i-th
position of the order. A *condition* is what a model computes from the known tokens for one rank to come; a
model's head makes of it a *distribution* of that rank's token. Both are computed
in batches: rows b, and n ranks of each row.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from parity_decoders.noise import Noise

LOG_2PI = math.log(2 * math.pi)
# noise of N tokens, by use: path(i) is [N, D] standard normals, i = 0 for x_0's own noise, 1 .. T for a trajectory's
# steps, T for x_T
PathNoise = Callable[[int], Tensor]


class TokenDistributions(Protocol):
    """Distributions of N tokens."""

    @property
    def log_sigma(self) -> Tensor:
        """[N] what the path before x_0 contributes (eq. 8): the sum of log sigma; 0 for a closed form."""
        ...

    def sample(self, path: PathNoise) -> Tensor:
        """Draw x_0 [N, D] as the model is sampled; reads path(0), a mixture path(1) too."""
        ...

    def propose(self, path: PathNoise) -> Tensor:
        """Draw [N, D] from the distribution of `log_density`: `sample`, except where a sampler adds no last noise."""
        ...

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        """Compute nats [N]: of p(x_0 | x_1) for a trajectory, of p(x) for a closed form. inner divides the residuals
        (released code has 42; a closed form allows only 1 and raises DecodingError for others)."""
        ...

    def rows(self, which: Tensor) -> "TokenDistributions":
        """Select the distributions of the tokens `which` [M], indices."""
        ...


class Affine(NamedTuple):
    """Gaussians of x_{i-1} given x_i, [..., D] each: N(offset + slope x_i, std^2)."""

    offset: Tensor
    slope: Tensor
    std: Tensor

    def mean(self, x: Tensor) -> Tensor:
        """Compute the means [..., D] of x_{i-1} given x [..., D]."""
        return self.offset + self.slope * x

    def select(self, k: int) -> "Affine":
        """Select the Gaussians of the k-th of K points [N, K, D]."""
        return Affine(self.offset[:, k], self.slope[:, k], self.std[:, k])


class Chain(Protocol):
    """Distributions of N tokens as walks of Gaussian steps: x_T ~ N(0, I), then x_{i-1} given x_i for i = T .. 1; the
    token is x_0.

    `predict` calls the network; `gaussian` is arithmetic. Both take one point of each token, [N], or K points, [N, K],
    at steps i: a number, or one for each point.
    """

    steps: int  # T
    last: str  # "noise", or "mean" where x_0 is the mean of its Gaussian
    noisy: bool  # whether every step but the last adds noise; without noise a step has no density

    @property
    def prior(self) -> Tensor:
        """[P] what stands for a prediction before there is one."""
        ...

    def predict(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Predict [..., P] at x_i = x [..., D], in numbers that stay useful at the next steps. Calls the network."""
        ...

    def predict_where(self, mask: Tensor, x: Tensor, i: Tensor) -> Tensor:
        """Predict [M, P] at the M points of x [N, K, D] that `mask` [N, K] marks, at steps i [N, K]."""
        ...

    def gaussian(self, i: int | Tensor, prediction: Tensor) -> Affine:
        """Compute the steps from x_i under predictions [..., P], of these points or of others."""
        ...

    def __len__(self) -> int:
        """Return N."""
        ...

    def take(self, which: Tensor) -> "Chain":
        """Select the steps of the tokens `which` [M], indices."""
        ...


class ContinuousModel(Protocol):
    """One network with what it is conditioned on: labels or prompts, guidance and the sampler's settings are inside."""

    length: int  # L
    dim: int  # D
    steps: int  # T: a distribution reads path(0) .. path(T)
    raster: bool  # whether it decodes in raster order only

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> Any:
        """Compute the conditions of B*n tokens, row-major, from tokens [B, L, D], order [B, L], ranks, n_known [B, n]:
        the token of rank `ranks` given those of ranks below n_known (n_known <= ranks, both below L). n_known [B, 1]:
        the n ranks of a row are drawn together."""
        ...

    def distribution(self, condition: Any, path: PathNoise) -> TokenDistributions:
        """Compute the distributions of what `conditions` gave, in one batch."""
        ...

    def chain(self, condition: Any) -> Chain:
        """Make the same distributions step by step, for decoders that shorten the walk."""
        ...

    def take(self, rows: Tensor) -> "ContinuousModel":
        """Select rows of the model."""
        ...


class Pair(NamedTuple):
    """Target and draft of the same tokens."""

    target: ContinuousModel
    draft: ContinuousModel | None = None


class Start(NamedTuple):
    """What an image starts from: order [B, L] int64, the grid position of each rank."""

    order: Tensor


def make_path_noise(noise: Noise, use: str, ranks: Tensor, steps: int, dim: int) -> PathNoise:
    """Make the function path(i) -> [B*n, D] of the noise of the tokens of `ranks` [B, n] in step i of 0 to `steps`. It
    is keyed by rank and use, so that two models share it."""
    return lambda i: noise.normal(use, ranks * (steps + 1) + i, dim).flatten(0, 1)


def draw_order(noise: Noise, rows: int, length: int, raster: bool) -> Tensor:
    """Draw a permutation of the grid for each row, [B, L]; raster order if `raster`."""
    positions = torch.arange(length, device=noise.keys.device)
    if raster:
        return positions.expand(rows, -1)
    return noise.uniform("order", positions[None].expand(rows, -1)).argsort(1)


def select_tokens_before(tokens: Tensor, ranks: Tensor, n_known: Tensor, length: int) -> Tensor:
    """Return the tokens [B, m, D] that a causal model reads for `ranks` [B, n]: those before the last of them.

    Raises ValueError unless all predecessors of each rank are known. On a GPU this is not checked, because reading a
    value would synchronise; all tokens but the last are returned.
    """
    if ranks.device.type != "cpu":
        return tokens[:, : length - 1]
    n_known = n_known.expand_as(ranks)
    if len(short := (n_known < ranks).nonzero()):
        rank, n_before = (int(v[tuple(short[0])]) for v in (ranks, n_known))
        raise ValueError(f"known {n_before} at place {rank}: a causal model has no condition after an unknown place")
    return tokens[:, : int(ranks.max())]
