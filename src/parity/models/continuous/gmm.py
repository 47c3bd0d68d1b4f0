"""A causal transformer with a Gaussian-mixture head, class-conditional: continuous tokens whose distribution has a
closed form.

Source: Tschannen et al. 2025 (GIVT): raster order, one mixture with diagonal covariances per token; the paper of
continuous speculative decoding, eq. 52. p, q and the residual are known exactly, so a speculative decoder of this head
can be tested against them. A temperature multiplies every component's scale, which leaves a mixture; guidance would
not, so there is none.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from parity_decoders.protocols.continuous import PathNoise, select_tokens_before
from torch import Tensor, nn

from parity.models.continuous.diffusion import HeadSampling
from parity.models.continuous.mar import Block
from parity.models.continuous.tabular import MixtureDistribution, MixtureWalk

FAMILY = {  # see models.continuous
    "condition": "class",
    "causal": True,
    "single_path": False,
    "samplers": ("ddpm",),
    "schedules": (),
    "reads": ("temperature",),
}


@dataclass(frozen=True)
class GMMConfig:
    classes: int
    grid: int  # an image has this many tokens a side
    dim: int  # a token is D = `dim` numbers
    width: int
    blocks: int
    heads: int
    components: int  # the distribution of a token is a mixture of K = `components` Gaussians
    floor: float = 0.02  # smallest scale of a component; without it flat backgrounds drive the density to infinity

    @property
    def tokens(self) -> int:
        return self.grid**2


class GMMNet(nn.Module):
    """The network: a position's condition is computed from the class, which comes first, and the tokens before it."""

    def __init__(self, c: GMMConfig):
        super().__init__()
        self.config = c
        self.class_emb = nn.Embedding(c.classes, c.width)
        self.z_proj = nn.Linear(c.dim, c.width)
        self.pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, c.width))
        self.blocks = nn.ModuleList(Block(c.width, c.heads) for _ in range(c.blocks))
        self.norm = nn.LayerNorm(c.width, eps=1e-6)
        self.head = nn.Linear(c.width, c.components * (1 + 2 * c.dim))
        nn.init.normal_(self.pos_embed_learned, std=0.02)
        nn.init.normal_(self.class_emb.weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Compute conditions z [N, S + 1, width] of ranks 0 .. S from tokens [N, S, D], S < L, and labels [N]."""
        x = torch.cat([self.class_emb(labels)[:, None], self.z_proj(tokens)], 1)
        x = x + self.pos_embed_learned[:, : x.shape[1]]
        causal_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        for block in self.blocks:
            x = block(x, causal_mask)
        return self.norm(x)

    def distribution(self, z: Tensor) -> MixtureDistribution:
        """Compute the distributions of N tokens, mixtures of K Gaussians, from conditions z [N, width]."""
        c = self.config
        numbers = self.head(z).to(self.head.weight.dtype)
        shape = (c.components, c.dim)
        weights, means, scales = numbers.split([c.components, c.components * c.dim, c.components * c.dim], -1)
        scales = F.softplus(scales.unflatten(-1, shape)) + c.floor
        return MixtureDistribution(weights.log_softmax(-1), means.unflatten(-1, shape), scales)


@dataclass
class GMM:
    """Satisfies `ContinuousModel`, in raster order. One causal pass gives all places' conditions."""

    net: GMMNet
    labels: Tensor  # [B] class of each image
    sampling: HeadSampling  # only its temperature is read
    raster = True
    steps = 1  # noise is needed for path(0) and path(1), which MixtureDistribution.sample reads

    def __post_init__(self) -> None:
        self.length, self.dim = self.net.config.tokens, self.net.config.dim

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> Tensor:
        """Compute z [B*n, width] of `ranks` [B, n] from tokens [B, L, D]. Raises ValueError if n_known < ranks."""
        z = self.net(select_tokens_before(tokens, ranks, n_known, self.length), self.labels)
        return z.gather(1, ranks[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)

    def distribution(self, condition: Any, path: PathNoise | None = None) -> MixtureDistribution:
        distribution = self.net.distribution(condition)
        return distribution._replace(scales=distribution.scales * self.sampling.temperature)

    def chain(self, condition: Any) -> MixtureWalk:
        return MixtureWalk(self.distribution(condition))

    def take(self, rows: Tensor) -> "GMM":
        return GMM(self.net, self.labels[rows], self.sampling)


Config = GMMConfig
Network = GMMNet
Model = GMM
