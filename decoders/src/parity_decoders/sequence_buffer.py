"""The tokens a decoder has written so far, and the random numbers of those it writes next.

Rows of a batch may be at different positions. A position has the same random numbers in every pass.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step

AHEAD = 32  # extra positions drawn in one call, because the next passes need them


def find_end(forced: Tensor) -> int:
    """Return the number of positions up to the last that is drawn; in forced [L], all after it are forced and cost no
    pass."""
    return 1 + int((forced < 0).nonzero().max())


def release_rows(model: Any, done: np.ndarray) -> None:
    """Let a model compute the rows that are `done` [B] bool no more, if some are, but not all, and it can leave them
    out."""
    if done.any() and not done.all() and hasattr(model, "release"):
        model.release(torch.from_numpy(done))


class SequenceBuffer:
    """The tokens of each row, final ones and drafts, and how far each row has come; all is changed in place, where a
    captured pass reads it.

    tokens  [B, L + 1 + spare]: position i is in tokens[:, i + 1], the prompt's last token (position -1) comes first;
            `spare` columns take what is drawn past the end
    frontier, last_frontier  [B] first open position, now and before the last pass
    age     [B, 1] passes since the row began
    rows    [B, 1] number of each row
    grammar whether tokens are forced
    end     number of positions up to the last that is drawn
    static  whether shapes are those of (batch, window) alone, see `TokenModel`
    """

    def __init__(self, model: TokenModel, start: Tensor, spare: int):
        """Start the rows from the prompts' last tokens `start` [B]. spare: columns for tokens past the end."""
        self.model = model
        self.queue: Any = getattr(model, "queue", None)
        self.n_refills = 0
        self.tokens = torch.zeros(len(start), model.length + 1 + spare, dtype=start.dtype, device=start.device)
        self.tokens[:, 0] = start
        self.frontier, self.last_frontier = torch.zeros_like(start), torch.zeros_like(start)
        self.age = torch.zeros_like(start)[:, None]
        self.rows = torch.arange(len(start), device=start.device)[:, None]
        self.numbers = torch.arange(self.tokens.shape[1], device=start.device)
        self.end = model.length  # shorter where the grammar forces all that follows, which costs no pass
        self.static = getattr(model, "static", False)
        self.grammar = getattr(model, "grammar", True)
        if self.grammar:
            self.end = find_end(model.forced)

    def is_done(self) -> bool:
        """Return whether all rows are done."""
        return int(self.frontier.min()) >= self.end

    def waits(self) -> bool:
        """Return whether rows wait for a place."""
        return self.queue is not None and self.queue.waits()

    def take_waiting_rows(self) -> bool:
        """Let rows that wait in the model's queue begin in the places of rows that are done; return whether any did."""
        began = self.queue.fill(self.model, (self.frontier >= self.end).cpu()) if self.waits() else None
        if began is None:
            return False
        self._clear_rows(began)
        self.n_refills += 1
        return True

    def release_done_rows(self) -> None:
        """Let the model compute rows that are done no more, on a CPU; not where shapes are fixed, nor where rows wait
        for their places."""
        if self.frontier.device.type == "cpu" and not self.static and not self.waits():
            release_rows(self.model, self.frontier.numpy() >= self.end)  # numpy takes half as long for so few numbers

    def _clear_rows(self, rows: Tensor) -> None:
        """Set the given rows [B] bool back to their start, without tokens."""
        self.tokens[:, 1:].masked_fill_(rows[:, None], 0)
        for x in (self.frontier, self.last_frontier, self.age[:, 0]):
            x.masked_fill_(rows, 0)

    def read_last_token(self) -> Tensor:
        """Read the last final token [B, 1]."""
        return self.tokens.gather(1, self.frontier[:, None])

    def next_positions(self, n: int) -> Tensor:
        """Return the first n open positions [B, n] of each row, one after the other; they may exceed the length."""
        return self.frontier[:, None] + self.numbers[:n]

    def mask_new_rows(self, drafts: Tensor) -> Tensor:
        """Replace drafts [B, n] by -1 in rows that have made no pass yet."""
        return drafts.masked_fill(self.age == 0, -1)

    def advance(self, tokens: Tensor, n_kept: Tensor, nodes: Tensor | None = None) -> Step:
        """Write a pass's tokens [B, W] from the first open position on, move the frontier by n_kept [B], those that are
        final, and return the step. Tokens past `end` are not counted: the grammar forces them at no pass, so that a row
        is done in the same pass whatever the other rows do. nodes: see `Step`."""
        n_kept = n_kept.minimum(self.end - self.frontier)
        self.tokens.scatter_(1, self.next_positions(tokens.shape[1]) + 1, tokens)
        self.last_frontier.copy_(self.frontier)
        self.frontier += n_kept
        self.age += 1
        return Step(tokens, n_kept, self.last_frontier.clone(), nodes)


class ByPosition:
    """Random numbers of the next open positions. A CPU reuses what it drew in earlier passes. A GPU draws anew in each
    pass, because drawing is cheap there and reading how far rows have come would synchronise."""

    def __init__(self, line: SequenceBuffer, draw: Callable[[Tensor], Tensor]):
        """Set the buffer and the function draw(positions [B, n]) -> [B, n, ...] that draws the numbers."""
        self.line, self.draw = line, draw
        self.first = line.frontier  # [B] first positions of the numbers held
        self.held: Tensor | None = None
        self.n_refills = 0

    def take_next(self, n: int) -> Tensor:
        """Return the numbers [B, n, ...] of the next n positions of each row; on a CPU they are drawn only if those of
        earlier calls do not cover them."""
        line = self.line
        if line.static or line.frontier.device.type != "cpu":
            return self._draw_next(n)
        if self.held is not None and self.n_refills == line.n_refills:  # a row that began has other numbers
            shift = (line.frontier - self.first).numpy()
            low, high = int(shift.min()), int(shift.max())
            if high + n <= self.held.shape[1]:
                if low == high:
                    return self.held[:, low : low + n]
                slots = (line.frontier - self.first)[:, None] + line.numbers[:n]
                return self.held[line.rows, slots]
        remaining = line.model.length - int(line.frontier.min())
        self.first, self.n_refills = line.frontier.clone(), line.n_refills
        self.held = self._draw_next(max(n, min(n + AHEAD, remaining)))
        return self.held[:, :n]

    def _draw_next(self, n: int) -> Tensor:
        """Draw the numbers [B, n, ...] of the next n positions anew."""
        return self.draw(self.line.next_positions(n))


def make_exponentials(line: SequenceBuffer, noise: Noise) -> ByPosition:
    """Make the source of the unit exponentials [B, n, V] by which the tokens of the next n positions are drawn."""
    return ByPosition(line, lambda positions: noise.exponential("sample", positions, line.model.vocab))


def make_trials(line: SequenceBuffer, noise: Noise, siblings: int) -> ByPosition:
    """Make the source of the uniforms [B, n, siblings] by which candidates are accepted: one a position and sibling."""
    each = torch.arange(siblings, device=line.frontier.device)
    return ByPosition(line, lambda positions: noise.uniform("accept", positions[..., None] * siblings + each))
