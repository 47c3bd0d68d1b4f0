"""From a model's logits to the law that is sampled: guidance, temperature, top-k, top-p, grammar.

`Sampled` wraps a model and satisfies the same protocol, so a decoder sees one law and acceptance ratios use it on both
sides.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from a model's logits: part of what the law is, so the same for every method."""

    guidance: float = 1.0  # scale s of classifier-free guidance u + s (c - u); 1 is none
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest of the last dimension to -inf; ties with the k-th are kept."""
    return logits.masked_fill(logits < logits.topk(min(k, logits.shape[-1])).values[..., -1:], float("-inf"))


def top_p_filter(logits: Tensor, p: float, at_least: int = 1) -> Tensor:
    """Set all but the smallest set of most likely tokens whose mass reaches p, of at_least tokens, to -inf (Holtzman et
    al. 2020); of equal tokens the first are kept. Only values are sorted, on a CPU by numpy, ten times faster than
    torch."""
    if logits.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(logits.detach().numpy())).flip(-1)
    else:
        ordered = logits.sort(descending=True).values
    mass = ordered.softmax(-1).cumsum(-1, dtype=torch.float64)
    # a token is kept if the mass of likelier ones is less than p
    n_kept = ((mass[..., :-1] < p).sum(-1, keepdim=True) + 1).clamp(min=min(at_least, logits.shape[-1]))
    least = ordered.gather(-1, n_kept - 1)
    n_equal = n_kept - (logits > least).sum(-1, keepdim=True)
    is_equal = logits == least
    excluded = (logits < least) | (is_equal & (is_equal.cumsum(-1, dtype=torch.int32) > n_equal))
    return logits.masked_fill(excluded, float("-inf"))
