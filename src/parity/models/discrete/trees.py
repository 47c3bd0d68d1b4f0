"""Trees of drafts: several continuations evaluated in one pass. Node s of a row follows node parents[b, s] < s, the
root is node 0."""

import torch
from torch import Tensor


def ancestors(parents: Tensor) -> Tensor:
    """parents [B, S], -1 for none, to bool [B, S, S]: whether the second node is the first, or one that it follows."""
    S = parents.shape[1]
    reached = torch.eye(S, device=parents.device).repeat(len(parents), 1, 1)
    reached.scatter_add_(2, parents.clamp(min=0)[..., None], (parents >= 0).float()[..., None])
    for _ in range((S - 1).bit_length()):  # each squaring doubles the reach
        reached = (reached @ reached).clamp_(max=1)
    return reached > 0
