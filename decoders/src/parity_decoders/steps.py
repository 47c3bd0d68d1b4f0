"""What a decoder yields."""

from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """One pass of the target over a batch whose rows stand at different positions (discrete)."""

    tokens: Tensor  # [B, W] tokens of the pass
    kept: Tensor  # [B] how many of them are final; 0 for a row that was finished before
    # [B] position of the first token: the others follow it, the first `kept` are final. Or [B, W], the position of each
    # final token, in any order: an unused slot has a position >= L.
    positions: Tensor
    nodes: Tensor | None = None  # [B] tokens evaluated in the pass, without those past the end; None: W

    def find_places(self, length: int) -> Tensor:
        """Find the position [B, W] of each token, `length` for one that is not final."""
        if self.positions.ndim == 2:
            return self.positions.clamp(max=length)
        slot = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        final = slot < self.kept[:, None]
        return torch.where(final, self.positions[:, None] + slot, length).clamp(max=length)

    def count_nodes(self, end: int) -> Tensor:
        """Count the tokens [B] evaluated in the pass for each row, of which `end` positions are drawn."""
        if self.nodes is not None:
            return self.nodes
        if self.positions.ndim == 2:
            return (self.positions < end).sum(1)
        return (end - self.positions).clamp(0, self.tokens.shape[1])


class Fill(NamedTuple):
    """One loop of a decoder over a batch whose rows stand at different ranks (any-subset)."""

    positions: Tensor  # [B, W] distinct in a row where `final`
    tokens: Tensor  # [B, W]
    final: Tensor  # [B, W] bool: which tokens are final
    calls: Tensor  # [B] evaluations of the model the row needed, one for each order it is laid out in; 0 once finished
    drafts: Tensor | None = None  # [B] passes of an auxiliary drafter, if there is one
    accepted_drafts: Tensor | None = None  # [B] drafts that were verified and kept; None: it does not draft


class Draw(NamedTuple):
    """One step of a decoder over rows at different ranks (continuous): the first kept[b] tokens of row b are new."""

    tokens: Tensor  # [B, W, D]
    kept: Tensor  # [B]; 0 for a row that was finished before
    verified: Tensor | None = None  # [B, W] bool: a draft of this rank was verified
    accepted: Tensor | None = None  # [B, W] bool: a draft of this rank was verified and accepted
    log_ratio: Tensor | None = None  # [B, W] log p(Y_p) / q(Y_q) of eq. 9 for the verified
    distance: Tensor | None = None  # [B, W] squared distance of a draft from what the target draws of the same noise
    tries: Tensor | None = None  # [B] draws of the acceptance-rejection sampler
    gave_up: Tensor | None = None  # [B] bool: the sampler accepted no draw within its budget
    noise: Tensor | None = None  # [B, W, T + 1, D] normals under which plain decoding draws the same tokens
    accepted_drafts: Tensor | None = None  # [B] how many drafts were accepted: tokens, or steps of their walks
    standing: Tensor | None = None  # [B, L, D] the present token of every rank, of a decoder that draws all at once
