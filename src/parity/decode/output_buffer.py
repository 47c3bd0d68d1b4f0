"""Output of a batch for decoders of every kind: tokens, the step in which each became final, and the time."""

import time

import torch
from parity_decoders.canvas import Canvas
from torch import Tensor

from parity.base.errors import ParityError


def now(device: torch.device) -> float:
    """Wait for all work that was launched on `device`, and return the seconds of a monotonic clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class TimedCanvas(Canvas):
    """The tokens of a batch, and a clock that runs until `finish`. The device is waited for then, and after the first
    step."""

    def __init__(self, blank: Tensor):
        """Start the clock with `blank` [B, L] or [B, L, D], the tokens before the first step."""
        super().__init__(blank)
        self.started = now(blank.device)
        self.first = float("nan")  # seconds until the first step was written

    def write(self, positions: Tensor, new: Tensor, rows: Tensor | None = None) -> None:
        super().write(positions, new, rows)
        if self.steps == 1:
            self.first = now(self.step.device) - self.started

    def finish(self, needed: Tensor) -> float:
        """Stop the clock and return its seconds; tokens and steps are [B, L] from now on. Raises ParityError if a place
        of `needed` [B, L] bool was never written."""
        seconds = now(self.tokens.device) - self.started
        self.tokens, self.step = self.tokens[:, :-1], self.step[:, :-1]
        self.refuse(needed & (self.step == 0), "the decoder stopped before it was filled in")
        return seconds

    def refuse(self, bad: Tensor, problem: str) -> None:
        """Raise ParityError if `bad` [B, L] has a True place, for the first one by step; `problem` may name {token}."""
        if bad.any():
            row, position = min(bad.nonzero().tolist(), key=lambda index: int(self.step[index[0], index[1]]))
            token = self.tokens[row, position].tolist()
            raise ParityError(f"row {row}, position {position}: {problem.format(token=token)}")
