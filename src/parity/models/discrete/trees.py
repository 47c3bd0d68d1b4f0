"""Trees of drafts: several continuations evaluated in one pass. Node s of a row follows node parents[b, s] < s, the root is node 0."""

import torch
from torch import Tensor


def ancestors(parents: Tensor) -> Tensor:
    """parents [B, S], -1 for none, to bool [B, S, S]: whether the second node is the first, or one that it follows."""
    S = parents.shape[1]
    found = torch.eye(S, device=parents.device).repeat(len(parents), 1, 1)
    found.scatter_add_(2, parents.clamp(min=0)[..., None], (parents >= 0).float()[..., None])
    for _ in range((S - 1).bit_length()):  # each squaring doubles the reach
        found = (found @ found).clamp_(max=1)
    return found > 0


def followed(tokens: Tensor, parents: Tensor, truth: Tensor, above: Tensor) -> Tensor:
    """Which nodes [B, S] bool hold the tokens that were drawn: tokens [B, S] in them, truth [B, S] what was drawn after each, above from
    `ancestors`. They are one path from the root, which always holds, if no two nodes of one parent hold the same token."""
    right = (parents < 0) | (truth.gather(1, parents.clamp(min=0)) == tokens)
    return ~(above & ~right[:, None]).any(-1)
