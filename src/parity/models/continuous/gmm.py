"""A causal transformer with a Gaussian-mixture head, class-conditional: continuous tokens whose law has a closed form.

Source: Tschannen et al. 2025 (GIVT): raster order, one mixture with diagonal covariances per token; the paper of continuous speculative decoding,
eq. 52. p, q and the residual are then known exactly, so a speculative decoder of this head can be tested against them.
A temperature multiplies every component's scale, as there, and leaves a mixture; guidance would not, and is not had.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.equality.mixtures import Mixture
from parity.models.continuous.diffusion import LOG_2PI
from parity.models.continuous.mar import Block
from parity.models.continuous.protocol import PathNoise


class MixtureLaw(NamedTuple):
    """Laws of N tokens, each a mixture of K Gaussians with diagonal covariance."""

    log_weights: Tensor  # [N, K]
    means: Tensor  # [N, K, D]
    scales: Tensor  # [N, K, D]

    @property
    def log_sigma(self) -> Tensor:
        return torch.zeros_like(self.log_weights[:, 0])

    def sample(self, path: PathNoise) -> Tensor:
        """path(0) is the Gaussian's noise; the first number of path(1), as a uniform, chooses the component."""
        u = torch.special.ndtr(path(1)[:, :1])
        k = (u > self.log_weights.exp().cumsum(1)).sum(1).clamp(max=self.log_weights.shape[1] - 1)
        rows = torch.arange(len(k), device=k.device)
        return self.means[rows, k] + self.scales[rows, k] * path(0)

    def propose(self, path: PathNoise) -> Tensor:
        return self.sample(path)

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        if inner != 1:
            raise ValueError(f"inner_temperature {inner}: allowed: 1, since a mixture has no residuals of its own")
        z = (x[:, None] - self.means) / self.scales
        return (self.log_weights + (-0.5 * z * z - self.scales.log()).sum(-1)).logsumexp(1) - 0.5 * LOG_2PI * x.shape[
            -1
        ]

    def rows(self, which: Tensor) -> "MixtureLaw":
        return MixtureLaw(self.log_weights[which], self.means[which], self.scales[which])


@dataclass(frozen=True)
class GMMConfig:
    classes: int
    grid: int  # tokens a side
    dim: int  # numbers per token, D
    width: int
    blocks: int
    heads: int
    components: int  # K
    floor: float = (
        0.02  # smallest scale, in deviations of a latent: flat backgrounds would drive the density without bound
    )

    @property
    def tokens(self) -> int:
        return self.grid**2


class GMMNet(nn.Module):
    """The class stands before the first token; what is read there and at the tokens before a place gives the place's condition."""

    def __init__(self, c: GMMConfig):
        super().__init__()
        self.config = c
        self.class_emb, self.z_proj = nn.Embedding(c.classes, c.width), nn.Linear(c.dim, c.width)
        self.pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, c.width))
        self.blocks, self.norm = (
            nn.ModuleList(Block(c.width, c.heads) for _ in range(c.blocks)),
            nn.LayerNorm(c.width, eps=1e-6),
        )
        self.head = nn.Linear(c.width, c.components * (1 + 2 * c.dim))
        nn.init.normal_(self.pos_embed_learned, std=0.02)
        nn.init.normal_(self.class_emb.weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """tokens [N, S, D] of the first S places, S < L, labels [N] -> conditions z [N, S + 1, width] of places 0 .. S."""
        x = torch.cat([self.class_emb(labels)[:, None], self.z_proj(tokens)], 1)
        x = x + self.pos_embed_learned[:, : x.shape[1]]
        before = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        for block in self.blocks:
            x = block(x, before)
        return self.norm(x)

    def law(self, z: Tensor) -> MixtureLaw:
        """z [N, width]."""
        c = self.config
        weights, means, scales = (
            self.head(z)
            .to(self.head.weight.dtype)
            .split([c.components, c.components * c.dim, c.components * c.dim], -1)
        )
        shape = (c.components, c.dim)
        return MixtureLaw(
            weights.log_softmax(-1), means.unflatten(-1, shape), F.softplus(scales.unflatten(-1, shape)) + c.floor
        )


def loss(net: GMMNet, tokens: Tensor, labels: Tensor) -> Tensor:
    """Training loss: nats per number of tokens [N, L, D], a mean."""
    z = net(tokens[:, :-1], labels)
    return -net.law(z.flatten(0, 1)).log_density(tokens.flatten(0, 1)).mean() / tokens.shape[-1]


def require_predecessors(places: Tensor, known: Tensor) -> None:
    """ValueError unless every place's predecessors are all known: a causal model has no condition for it otherwise."""
    short = (known < places).nonzero()
    if len(short):
        place, given = (int(v[tuple(short[0])]) for v in (places, known))
        raise ValueError(
            f"known {given} at place {place}: a causal model has no condition for a place whose predecessor is unknown"
        )


@dataclass(frozen=True)
class GMM:
    """Satisfies `ContinuousModel`; `order` is raster order and is not read. One causal pass gives the conditions of all places."""

    net: GMMNet
    labels: Tensor  # [B]
    temperature: float = 1.0
    raster = True
    steps = 1  # what MixtureLaw.sample reads besides path(0)

    @property
    def length(self) -> int:
        return self.net.config.tokens

    @property
    def dim(self) -> int:
        return self.net.config.dim

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Tensor:
        """z [B*n, width]; ValueError where known < places."""
        require_predecessors(places, known)
        z = self.net(tokens[:, : int(places.max())], self.labels)
        return z.gather(1, places[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)

    def law(self, condition: Any, path: PathNoise) -> MixtureLaw:
        law = self.net.law(condition)
        return law._replace(scales=law.scales * self.temperature)

    def take(self, rows: Tensor) -> "GMM":
        return GMM(self.net, self.labels[rows], self.temperature)


@dataclass(frozen=True)
class TabularMixture:
    """The mixture over whole sequences of the equality tests as a `ContinuousModel`, in float64: every conditional is exact.

    The components tie the tokens together, and the posterior of the component has a closed form whatever is known: any order, and places whose
    predecessors are unknown.
    """

    mixture: Mixture
    rows: int
    raster: bool = True
    steps = 1

    @property
    def length(self) -> int:
        return self.mixture.means.shape[1]

    @property
    def dim(self) -> int:
        return self.mixture.means.shape[2]

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> MixtureLaw:
        weights, means, scales = (torch.as_tensor(v, dtype=torch.float64, device=tokens.device) for v in self.mixture)
        z = (tokens.double()[:, None] - means) / scales  # [B, K, L, D]
        evidence = (-0.5 * z * z - scales.log()).sum(-1).transpose(1, 2)  # [B, L, K], a constant aside
        evidence = evidence.gather(1, order[..., None].expand(-1, -1, len(weights)))
        evidence = F.pad(evidence.cumsum(1), (0, 0, 1, 0))  # of the first i places, i = 0 .. L
        log = weights.log() + evidence.gather(1, known[..., None].expand(-1, -1, len(weights)))
        position = order.gather(1, places).flatten()
        return MixtureLaw(
            log.flatten(0, 1).log_softmax(-1), means[:, position].transpose(0, 1), scales[:, position].transpose(0, 1)
        )

    def law(self, condition: Any, path: PathNoise) -> MixtureLaw:
        return condition

    def take(self, rows: Tensor) -> "TabularMixture":
        return TabularMixture(self.mixture, len(rows), self.raster)
