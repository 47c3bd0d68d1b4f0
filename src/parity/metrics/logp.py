"""How likely the any-subset model itself finds what was filled in: log p of the missing part of a row, in one pass."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.metrics.standard_errors import means
from parity.models.anysubset.protocol import AnySubsetModel, Infilling

KINDS = ("anysubset",)
MEASURES = {"logp": ("log p of the missing part under the model", "nats", "none")}


def joint_laws(model: AnySubsetModel, start: Infilling) -> tuple[Tensor, Tensor, Tensor]:
    """Laws [B, S, V] of the missing tokens of complete rows in their order (Eq. 6), one pass; the tokens, and whether
    there is one [B, S], for rows may miss fewer than S."""
    width = int((start.end - start.begin).max())
    ranks = start.begin[:, None] + torch.arange(width, device=start.order.device)
    inside = ranks < start.end[:, None]
    asked = torch.where(inside, ranks, start.order.shape[1])
    own = start.tokens.gather(1, start.order.gather(1, ranks.clamp(max=start.order.shape[1] - 1)))
    return model.laws(start.tokens, start.order, start.begin, asked, ranks), own, inside


def log_probability(laws: Tensor, own: Tensor, inside: Tensor) -> Tensor:
    """log p [B], nats, of the missing tokens under their laws, all of `joint_laws`."""
    return torch.where(inside, laws.gather(-1, own[..., None])[..., 0].log(), 0).sum(1)


def rows(sample: Any) -> dict[str, np.ndarray]:
    return {} if sample.logp is None else {"logp": sample.logp}


arrays = rows  # the paired tests read it too


def measure(sample: Any) -> dict[str, float]:
    """From what the teacher-forced layer kept: one forward serves both."""
    return {} if sample.logp is None else means(logp=sample.logp)
