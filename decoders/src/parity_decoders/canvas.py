"""The tokens of a batch that decoders have made final, and the step of each: what every recorder writes to."""

import torch
from torch import Tensor


class Canvas:
    """The tokens of B rows of L places, filled in step by step.

    tokens  [B, L + 1, ...]: the last column takes what is not final
    step    [B, L + 1] int32, the step, from 1, that wrote a token; 0 before. Where rows are refilled, a batch takes
            more steps than int16 can count
    steps   how many there were
    """

    def __init__(self, blank: Tensor):
        """Begin with `blank` [B, L] or [B, L, D], the tokens before the first step."""
        self.tokens = torch.cat([blank, torch.zeros_like(blank[:, :1])], 1)
        self.step = torch.zeros(self.tokens.shape[:2], dtype=torch.int32, device=blank.device)
        self.steps = 0

    def write(self, positions: Tensor, new: Tensor, rows: Tensor | None = None) -> None:
        """Write the tokens `new` [B, W] or [B, W, D] of the next step at positions [B, W] (L for a slot that is not
        final) of rows [B], by default all in order, and note the step's number there."""
        self.steps += 1
        if rows is None:
            index = positions if new.ndim == 2 else positions[..., None].expand_as(new)
            self.tokens.scatter_(1, index, new.to(self.tokens.dtype))
            self.step.scatter_(1, positions, self.steps)
        else:
            self.tokens[rows[:, None], positions] = new.to(self.tokens.dtype)
            self.step[rows[:, None], positions] = self.steps
