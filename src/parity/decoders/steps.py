"""What a decoder yields."""

from typing import NamedTuple

from torch import Tensor


class Step(NamedTuple):
    """One pass of the target over a batch whose rows stand at different positions (discrete)."""

    tokens: Tensor  # [B, W] tokens of the pass
    kept: Tensor  # [B] how many of them are final; 0 for a row that was finished before
    # [B] where the first of them stands: the others follow, the first `kept` are final. Or [B, W], where each final one
    # stands, in any order: a slot that is not used carries a position >= L.
    positions: Tensor
    nodes: Tensor | None = None  # [B] tokens evaluated in the pass, if not W (those past the end of a row left out)


class Fill(NamedTuple):
    """One loop of a decoder over a batch whose rows stand at different ranks (any-subset)."""

    positions: Tensor  # [B, W] distinct in a row where `final`
    tokens: Tensor  # [B, W]
    final: Tensor  # [B, W] bool: which of them are
    calls: Tensor  # [B] evaluations of the model the row needed, one for each order it is laid out in; 0 once finished
    drafts: Tensor | None = None  # [B] passes of an auxiliary drafter, if there is one
    accepted_drafts: Tensor | None = None  # [B] drafts that were verified and kept; None: it does not draft


class Draw(NamedTuple):
    """One step of a decoder over rows at different places (continuous): the first kept[b] of row b's tokens are new."""

    tokens: Tensor  # [B, W, D]
    kept: Tensor  # [B]; 0 for a row that was finished before
    verified: Tensor | None = None  # [B, W] bool: a draft of this place was looked at
    accepted: Tensor | None = None  # [B, W] bool: ... and kept
    log_ratio: Tensor | None = None  # [B, W] log p(Y_p) / q(Y_q) of eq. 9 for the verified
    distance: Tensor | None = None  # [B, W] squared distance of a draft from what the target draws of the same noise
    tries: Tensor | None = None  # [B] draws of the acceptance-rejection sampler
    gave_up: Tensor | None = None  # [B] bool: it had none accepted within its budget
    noise: Tensor | None = None  # [B, W, T + 1, D] normals under which plain decoding draws these very tokens
    accepted_drafts: Tensor | None = None  # [B] as of a `Fill`: tokens, or steps of their walks
    standing: Tensor | None = None  # [B, L, D] what stands at every place now, where all are drawn at once
