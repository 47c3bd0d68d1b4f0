"""A MAR network with what it is conditioned on, as decoders see one: labels, guidance and the sampler's settings are inside."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.models.continuous.diffusion import Sampling, Steps, Trajectory, walk
from parity.models.continuous.mar import MARNet
from parity.models.continuous.protocol import PathNoise


def known_mask(order: Tensor, known: Tensor) -> Tensor:
    """[N, L] bool over grid positions: those of the first `known` [N] places of `order` [N, L]."""
    inside = torch.arange(order.shape[1], device=order.device) < known[:, None]
    return torch.zeros_like(inside).scatter(1, order, inside)


def guidance_at(sampling: Sampling, done: Tensor, length: int) -> Tensor:
    """The guidance scale when `done` [N] of `length` tokens will be known (MAR, appendix B: linear in what is known, or constant)."""
    share = done / length if sampling.guidance_schedule == "linear" else torch.ones_like(done, dtype=torch.float32)
    return 1 + (sampling.guidance - 1) * share.float()


@dataclass(frozen=True)
class MAR:
    """Satisfies `ContinuousModel`. Attention is bidirectional: a condition is one evaluation of the network, whatever is drawn beside it."""

    net: MARNet
    labels: Tensor  # [B]
    sampling: Sampling
    raster = False

    @property
    def length(self) -> int:
        return self.net.config.tokens

    @property
    def dim(self) -> int:
        return self.net.config.dim

    @property
    def steps(self) -> int:
        return self.sampling.steps

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Steps:
        """Pairs of a row that know the same tokens share one evaluation."""
        B, n = places.shape
        together = bool((known == known[:, :1]).all())
        rows = torch.arange(B, device=tokens.device)
        rows = rows if together else rows.repeat_interleave(n)
        mask = known_mask(order[rows], known[:, 0] if together else known.flatten())
        position = order.gather(1, places)
        position = position if together else position.flatten()[:, None]

        def read(labels: Tensor) -> Tensor:
            z = self.net(tokens[rows], mask, labels[rows])
            return z.gather(1, position[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)

        head = self.net.diffloss.net
        if self.sampling.guidance == 1:
            return Steps(head, self.sampling, read(self.labels))
        scale = guidance_at(self.sampling, (known + (n if together else 1)).flatten(), self.length)
        return Steps(
            head, self.sampling, read(self.labels), read(torch.full_like(self.labels, -1)), scale.to(tokens.dtype)
        )

    def law(self, condition: Any, path: PathNoise) -> Trajectory:
        return walk(condition, path)

    def take(self, rows: Tensor) -> "MAR":
        return MAR(self.net, self.labels[rows], self.sampling)
