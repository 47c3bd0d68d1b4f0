"""The diffusion head of continuous autoregressive models: a small MLP that makes of a condition z a distribution of one
token.

Source: Li et al. 2024 (MAR), sec. 3.2 and 4.3; Nichol & Dhariwal 2021 (cosine schedule, learned-range variance,
respacing); parameter names are those of `diffloss.net` in the published checkpoints.

Words. A *trajectory* starts at x_T ~ N(0, I) and is drawn step by step, from T to 1, from Gaussians N(mu_t, sigma_t^2);
the token is x_0. Its distribution is a `Trajectory`: the last Gaussian, p(x_0 | x_1), and the sum of log sigma over the
steps before it.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from typing import Literal, NamedTuple

import torch
from parity_decoders.compiling import CompiledPass
from parity_decoders.protocols.continuous import LOG_2PI, Affine, Chain, PathNoise
from torch import Tensor, nn

TRAINED = 1000  # the head is trained with this many diffusion steps


class Trajectory(NamedTuple):
    """The distributions at the end of walks of N tokens from x_T: the last step's Gaussians, and log sigma of the
    others."""

    mean: Tensor  # [N, D] the mean of p(x_0 | x_1)
    std: Tensor  # [N, D]
    log_sigma: Tensor  # [N] sum over steps T to 2 and coordinates; only differences between two models have a meaning
    last: str = "noise"  # with "mean", x_0 is the mean (published samplers), but its density stays the Gaussian's

    def sample(self, path: PathNoise) -> Tensor:
        return self.mean if self.last == "mean" else self.propose(path)

    def propose(self, path: PathNoise) -> Tensor:
        return self.mean + self.std * path(0)

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        """Compute log p(x | x_1) [N], in nats, of tokens x [N, D]; `inner` divides the residuals, nothing else."""
        z = (x - self.mean) / (inner * self.std)
        return (-0.5 * z * z - self.std.log()).sum(-1) - 0.5 * LOG_2PI * x.shape[-1]

    def rows(self, which: Tensor) -> "Trajectory":
        return Trajectory(self.mean[which], self.std[which], self.log_sigma[which], self.last)


class Schedule(NamedTuple):
    """A respaced schedule, each [T] from the cleanest step to the noisiest: `t` is the step's number in training."""

    t: Tensor
    alpha_bar: Tensor
    alpha_bar_before: Tensor
    beta: Tensor

    @property
    def log_posterior(self) -> Tensor:
        """Log variance of q(x_{t-1} | x_t, x_0); the last step's variance, zero, is its neighbour's, as published."""
        variance = self.beta * (1 - self.alpha_bar_before) / (1 - self.alpha_bar)
        return torch.cat([variance[1:2] if len(variance) > 1 else self.beta[:1], variance[1:]]).log()


def respace_steps(steps: int) -> list[int]:
    """List which `steps` of the training's steps 0 to 999 a respaced schedule takes: multiples of a stride, summed and
    rounded as in the released code; one step is step 0."""
    stride = (TRAINED - 1) / (steps - 1) if steps > 1 else 1.0
    return [round(position) for position in accumulate(repeat(stride, steps - 1), initial=0.0)]


@lru_cache
def make_schedule(steps: int) -> Schedule:
    """Make the cosine schedule respaced to `steps` of its 1,000 (Nichol & Dhariwal 2021, eq. 17, sec. 4); float64."""
    time = torch.arange(TRAINED + 1, dtype=torch.float64) / TRAINED
    f = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
    alpha_bar = (1 - (1 - f[1:] / f[:-1]).clamp(max=0.999)).cumprod(0)
    t = torch.tensor(respace_steps(steps))
    respaced = alpha_bar[t]
    previous = torch.cat([torch.ones(1, dtype=torch.float64), respaced[:-1]])
    return Schedule(t, respaced, previous, 1 - respaced / previous)


NOTHING = -1e4  # this stands for the log of a variance of 0, because interpolating between infinities gives NaN


@lru_cache
def compute_coefficients(sampler: str, steps: int, eta: float) -> Tensor:
    """Compute the coefficients [T, 4], float64, of each step from the cleanest: the mean is the first times x_0 plus
    the second times x_i, and twice the log deviation lies between the third and the fourth (the same for DDIM)."""
    s = make_schedule(steps)
    ab = s.alpha_bar
    previous = s.alpha_bar_before
    beta = s.beta
    low = s.log_posterior
    if sampler == "ddpm":
        mean = beta * previous.sqrt() / (1 - ab), (1 - previous) * (1 - beta).sqrt() / (1 - ab)
        return torch.stack([*mean, low, beta.log()], -1)
    # DDIM writes the mean with eps = (x - ab^1/2 x_0) / (1 - ab)^1/2. The last step's deviation would be 0, because
    # `previous` is 1 there; `low` has its neighbour's
    log_sigma = low + 2 * math.log(eta) if eta else torch.full_like(low, NOTHING)
    of_eps = (1 - previous - log_sigma.exp()).clamp(min=0).sqrt()
    of_x = of_eps / (1 - ab).sqrt()
    return torch.stack([previous.sqrt() - of_x * ab.sqrt(), of_x, log_sigma, log_sigma], -1)


def select_step(table: Tensor, i: int | Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Select the columns of a table [T, C] for steps i, 1 to T, in the dtype of `like` and for products with it: [...,
    1] each for a tensor i [...], scalars for a number i, which need no copy to a GPU."""
    if isinstance(i, int):
        return table[i - 1].to(like.dtype).unbind()
    return table.to(like.device)[i - 1].to(like.dtype)[..., None].unbind(-2)


class ResBlock(nn.Module):
    def __init__(self, width: int):
        """Build a block of two linear layers, whose shift, scale and gate a condition gives."""
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, -1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, width: int, out: int):
        """Build a linear layer to `out` numbers after a norm, whose shift and scale a condition gives."""
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, -1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class TimeEmbedding(nn.Module):
    FREQUENCIES = 256

    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(self.FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """Embed times t [N], as cosines and sines, to [N, width]."""
        half = self.FREQUENCIES // 2
        number = next(self.parameters()).dtype
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=t.device, dtype=number) / half)
        angles = t[:, None].to(number) * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1))


class HeadNet(nn.Module):
    """The head's network: x_t [N, D], t [N], z [N, W] to [N, 2 D], the noise and where the variance is in its range."""

    def __init__(self, dim: int, condition: int, width: int, depth: int):
        """Build a head of `depth` blocks for tokens of `dim` numbers and z of `condition`; at first its output is 0."""
        super().__init__()
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(condition, width)
        self.input_proj = nn.Linear(dim, width)
        self.res_blocks = nn.ModuleList(ResBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * dim)
        for block in (*self.res_blocks, self.final_layer):  # each block starts as the identity, and the output at zero
            for p in block.adaLN_modulation[1].parameters():
                nn.init.zeros_(p)
        for p in self.final_layer.linear.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        return self.run(x, t, self.cond_embed(z))

    def compile_run(self, device: str) -> None:
        """Compile `run`: a head is called many times a token, and launching its small kernels costs more than their
        arithmetic."""
        self.run = CompiledPass(self.run, device, dynamic=True)  # type: ignore[method-assign]

    def run(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """Compute [N, 2 D] as `forward` does, from a condition [N, width] that a walk embeds only once."""
        y = self.time_embed(t) + condition
        h = self.input_proj(x)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)


@dataclass(frozen=True)
class HeadSampling:
    """How a diffusion head is sampled. This defines the target's distribution, so it is the same for every method."""

    steps: int = 100  # T, the number of steps
    sampler: Literal["ddpm", "ddim"] = "ddpm"
    eta: float = 1.0  # the share of DDPM's noise that DDIM adds; at 0 a trajectory has no density
    temperature: float = 1.0  # the noise of every step is multiplied by it
    guidance: float = 1.0
    guidance_schedule: Literal["constant", "linear"] = "linear"
    clip: float = 0.0  # a diffusion head's prediction of x_0 is clipped here, for few steps; 0: not, as published
    last: Literal["noise", "mean"] = "noise"  # x_0 is drawn from the last Gaussian, or is its mean as in published code


@dataclass
class Steps:
    """The Gaussians of N tokens' steps under a head, a `Chain`.

    With guidance [N] and the condition without class, `unconditional` [N, W], eps = eps_u + guidance (eps_c - eps_u),
    and the variance is the conditional one (as published).
    """

    net: HeadNet
    sampling: HeadSampling
    z: Tensor  # [N, W]
    unconditional: Tensor | None = None
    guidance: Tensor | None = None

    def __post_init__(self) -> None:
        self.steps, self.last = self.sampling.steps, str(self.sampling.last)
        self.noisy = self.sampling.sampler == "ddpm" or self.sampling.eta > 0

    @cached_property
    def condition(self) -> Tensor:
        return self.net.cond_embed(self.z if self.unconditional is None else torch.cat([self.z, self.unconditional]))

    @property
    def prior(self) -> Tensor:
        """A clean token of zeros, and a variance in the middle of its range."""
        return self.z.new_zeros(2 * self.net.input_proj.in_features)

    def __len__(self) -> int:
        return len(self.z)

    def take(self, which: Tensor) -> "Steps":
        """Select the steps of the tokens `which` [M], indices."""

        def select(v: Tensor | None) -> Tensor | None:
            return None if v is None else v[which]

        return Steps(self.net, self.sampling, self.z[which], select(self.unconditional), select(self.guidance))

    def predict(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Predict x_0, and where the variance lies in its range, [..., 2 D], with guidance, at points x [N, D] or [N,
        K, D] of steps i (a number, or one for each point)."""
        s = make_schedule(self.sampling.steps)
        flat = x.flatten(0, -2)
        signal, noise = select_step(torch.stack([s.alpha_bar, 1 - s.alpha_bar], -1).sqrt(), i, x)
        condition = self.condition
        inputs = flat if self.unconditional is None else torch.cat([flat, flat])
        if x.ndim > 2:
            condition = condition.repeat_interleave(len(flat) // len(x), 0)
        if isinstance(i, int):
            t = torch.full(x.shape[:-1], int(s.t[i - 1]), device=x.device)
        else:
            t = s.t.to(x.device)[i - 1]
        eps, v = self.net.run(inputs, t.flatten().repeat(len(inputs) // len(flat)), condition).to(x.dtype).chunk(2, -1)
        if self.unconditional is not None and self.guidance is not None:
            n = len(flat)
            scale = self.guidance.repeat_interleave(len(flat) // len(x))
            eps = eps[n:] + scale[:, None] * (eps[:n] - eps[n:])
            v = v[:n]
        return torch.cat([(x - noise * eps.view_as(x)) / signal, v.view_as(x)], -1)

    def predict_where(self, mask: Tensor, x: Tensor, i: Tensor) -> Tensor:
        return self.take(mask.nonzero()[:, 0]).predict(x[mask], i[mask])

    def gaussian(self, i: int | Tensor, prediction: Tensor) -> Affine:
        """Compute the Gaussians of x_{i-1} given x_i under predictions [..., 2 D], as functions of x_i, at steps i."""
        start, v = prediction.chunk(2, -1)
        if self.sampling.clip:
            start = start.clamp(-self.sampling.clip, self.sampling.clip)
        table = compute_coefficients(self.sampling.sampler, self.sampling.steps, self.sampling.eta)
        of_start, of_x, low, high = select_step(table, i, prediction)
        std = (0.25 * (v + 1) * high + 0.25 * (1 - v) * low).exp()
        return Affine(of_start * start, of_x * torch.ones_like(start), self.sampling.temperature * std)

    def distribution(self, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Compute mean and deviation [N, D] of x_{i-1} given x_i = x [N, D]; i = T .. 1."""
        step = self.gaussian(i, self.predict(x, i))
        return step.mean(x), step.std


def walk(chain: Chain, path: PathNoise) -> Trajectory:
    """Walk N tokens from x_T = path(T) to the last step's distribution in one batch, by the noise path(T-1) ..
    path(1)."""
    x = path(chain.steps)
    log_sigma = x.new_zeros(len(x))
    for i in range(chain.steps, 1, -1):
        step = chain.gaussian(i, chain.predict(x, i))
        x = step.mean(x) + step.std * path(i - 1)
        log_sigma = log_sigma + step.std.log().sum(-1)
    step = chain.gaussian(1, chain.predict(x, 1))
    return Trajectory(step.mean(x), step.std, log_sigma, chain.last)


def compute_single_path_log_ratio(p: Steps, q: Steps, path: PathNoise) -> Tensor:
    """Compute log p(Y) / q(Y) [N] of trajectories Y drawn from q with the noise `path` (eq. 2): the paper's "single
    path" (Table 6). x_T cancels."""
    x = path(q.sampling.steps)
    log_ratio = torch.zeros((), dtype=q.z.dtype)
    for i in range(q.sampling.steps, 0, -1):
        distributions = [torch.distributions.Normal(*steps.distribution(x, i)) for steps in (p, q)]
        x = distributions[1].mean + distributions[1].stddev * path(i - 1)
        log_ratio = log_ratio + (distributions[0].log_prob(x) - distributions[1].log_prob(x)).sum(-1)
    return log_ratio
