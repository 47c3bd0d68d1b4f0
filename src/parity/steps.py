"""What a decoder yields."""

from typing import NamedTuple

from torch import Tensor


class Step(NamedTuple):
    """One pass of the target over a batch whose rows stand at different positions."""

    tokens: Tensor  # [B, W] tokens of the pass
    kept: Tensor  # [B] how many of them are final; 0 for a row that was finished before
    positions: Tensor  # [B] where the first of them stands: the others follow, the first `kept` are final; or [B, W] where each final one
    # stands, in any order: a slot that is not used carries a position >= L
    nodes: Tensor | None = None  # [B] tokens evaluated in the pass, if not W (those past the end of a row left out)
