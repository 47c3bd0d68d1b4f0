"""Couplings of Gaussians: turn a draw of one distribution into a draw of another that equals it as often as possible.

Source: De Bortoli et al. 2025, "Accelerated diffusion models via speculative sampling" (reflection of the means);
Bou-Rabee, Eberle & Zimmer 2020. Deviations that differ too are ours: docs/explanation/heads.md.

Words. x was drawn from q, a Gaussian with a mean and a deviation for each coordinate; p is the distribution it shall
have. n is (x - mean) / deviation. `kept` says that x did not change.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise

TRIES = 1024  # most draws from a residual; three in four are accepted where deviations are close
Gaussian = tuple[Tensor, Tensor]  # a Gaussian distribution: mean and deviation [..., D]


class Coupled(NamedTuple):
    """Result of a coupling: M points of each of N tokens."""

    x: Tensor  # [N, M, D]
    unchanged: Tensor  # [N, M] bool


def reflect(n: Tensor, shift: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Move standard normals n [..., D] about q's mean to standard normals about p's mean, by reflection.

    shift: q's mean less p's, in the same deviations; u [...] uniform. Returns the new normals, and bool [...] whether
    the point itself stayed, which has probability 2 Phi(-|shift| / 2).
    """
    unchanged = u.log() <= -(n * shift).sum(-1) - 0.5 * (shift * shift).sum(-1)
    direction = shift / shift.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(n.dtype).tiny)
    reflection = n - 2 * (n * direction).sum(-1, keepdim=True) * direction
    return torch.where(unchanged[..., None], n + shift, reflection), unchanged


def log_ratio(n: Tensor, ratio: Tensor) -> Tensor:
    """Compute log p / r [...] at n [..., D], for Gaussians with the same mean. n: in p's deviations from it; ratio
    [..., D]: p's variance over r's."""
    return 0.5 * ((ratio - 1) * n * n - ratio.log()).sum(-1)


def draw_residual(ratio: Tensor, noise: Noise, index: Tensor) -> Tensor:
    """Draw n [P, D], in p's deviations, from (p - r)+, where p and r share the mean and their variances have the ratio
    `ratio` [P, D]; index [P] names the draws. Raises DecodingError if no proposal is accepted.

    Proposals are from p times a bound of log p / r, c + sum a_j n_j^2: with weight c a normal, with weight a_j one
    whose j-th coordinate has density n^2. So the acceptance rate does not vanish as the deviations approach each other.
    Where they are far apart and the bound exceeds one, proposals are from p, since 1 also bounds 1 - r / p.
    """
    c = (-0.5 * ratio.log()).clamp(min=0).sum(-1, keepdim=True)
    a = (0.5 * (ratio - 1)).clamp(min=0)
    far_apart = (c + a.sum(-1, keepdim=True)) > 1
    c, a = torch.where(far_apart, 1, c), torch.where(far_apart, 0, a)
    weights = torch.cat([c, a], -1)
    D = ratio.shape[-1]
    drawn, pending = torch.zeros_like(ratio), torch.arange(len(index), device=ratio.device)
    for k in range(TRIES):
        counter = 2 * (index[pending] * TRIES + k)
        fresh = noise.take(pending)
        z = fresh.normal("retry", counter, D + 2)
        j = (weights[pending] / fresh.exponential("retry", counter + 1, D + 1)).argmax(-1, keepdim=True) - 1
        component = z[:, :D].gather(1, j.clamp(min=0))
        # a draw of density n^2 exp(-n^2 / 2)
        stretched = component.sign() * (component**2 + z[:, D:].square().sum(1, keepdim=True)).sqrt()
        n = torch.where((torch.arange(D, device=z.device) == j), stretched, z[:, :D])
        bound = c[pending, 0] + (a[pending] * n * n).sum(-1)
        accepted = fresh.uniform("retry", -1 - counter) * bound < -torch.expm1(-log_ratio(n, ratio[pending]))
        drawn[pending[accepted]] = n[accepted]
        pending = pending[~accepted]
        if not len(pending):
            return drawn
    raise DecodingError(f"coupling: none of {TRIES} draws of a residual was accepted; a deviation is 0 or not finite")


def couple(x: Tensor, q: Gaussian, p: Gaussian, noise: Noise, index: Tensor) -> Coupled:
    """Turn x [N, M, D], drawn from q, into a draw of p that equals it as often as possible; noise of N rows, index [N,
    M] names the draws.

    The means are coupled first, at q's deviations. Then the deviations are: a point stays with probability min(1, p /
    r), otherwise it is drawn from the residual. Where p's deviation is 0, x becomes its mean. Each point is coupled
    independently of the others.
    """
    (mean_q, std_q), (mean, std) = q, p
    degenerate = (std == 0).all(-1)  # a deviation of 0 is the last step of a sampler that takes the mean
    std, std_q = (torch.where(degenerate[..., None], 1, s) for s in (std, std_q))
    u, v = (noise.uniform("accept", 2 * index + k) for k in (0, 1))
    n, mean_stays = reflect((x - mean_q) / std_q, (mean_q - mean) / std_q, u)
    ratio = (std / std_q) ** 2
    std_stays = v.log() <= log_ratio(n * std_q / std, ratio)
    new = torch.where(mean_stays[..., None], x, mean + std_q * n)
    row, point = (~std_stays & ~degenerate).nonzero(as_tuple=True)
    if len(row):
        new[row, point] = (mean + 0 * new)[row, point] + std.expand_as(new)[row, point] * draw_residual(
            ratio[row, point], noise.take(row), index[row, point]
        )
    new = torch.where(degenerate[..., None], mean, new)
    return Coupled(new, torch.where(degenerate, (x == mean).all(-1), mean_stays & std_stays))
