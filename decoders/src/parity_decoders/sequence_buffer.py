"""The tokens a decoder has written so far, and the random numbers of those it writes next.

Rows of a batch may be at different positions. A position has the same random numbers in every pass.
"""

from collections.abc import Callable
from typing import Any

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


class SequenceBuffer:
    """The tokens of each row, final ones and drafts, and how far each row has come; all is changed in place, where a
    captured pass reads it.

    tokens  [B, L + 1 + spare]: position i is in tokens[:, i + 1], the prompt's last token (position -1) comes first;
            `spare` columns take what is drawn past the end
    frontier, last_frontier  [B] first open position, now and before the last pass
    step    passes made
    age     [B, 1] passes since the row began: less than `step` if it replaced a finished row
    newest  passes since any row began; 0: this pass is some row's first
    grammar whether tokens are forced
    end     number of positions up to the last that is drawn
    static  whether shapes are those of (batch, window) alone, see `TokenModel`
    """

    def __init__(self, model: TokenModel, start: Tensor, spare: int):
        """Start the rows from the prompts' last tokens `start` [B]. spare: columns for tokens past the end."""
        self.model = model
        self.step = 0
        self.newest = 0
        self.queue: Any = getattr(model, "queue", None)
        self.tokens = torch.zeros(len(start), model.length + 1 + spare, dtype=start.dtype, device=start.device)
        self.tokens[:, 0] = start
        self.frontier, self.last_frontier = torch.zeros_like(start), torch.zeros_like(start)
        self.age = torch.zeros_like(start)[:, None]
        self.numbers = torch.arange(self.tokens.shape[1], device=start.device)
        self.end = model.length  # shorter where the grammar forces all that follows, which costs no pass
        self.static = getattr(model, "static", False)
        self.grammar = getattr(model, "grammar", True)
        if self.grammar:
            self.end = find_end(model.forced)

    def count_remaining(self) -> int:
        """Count the open positions of the row that has the most; 0 when all rows are done.

        If the model's queue holds waiting rows, rows that are done are first cleared to begin again as those.
        """
        frontier = self.frontier
        if self.queue is not None and self.queue.waits():
            frontier = frontier.cpu()
            refilled = self.queue.fill(frontier >= self.end)
            if refilled is not None:
                self._clear_rows(refilled)
                return self.end
        return max(self.end - int(frontier.min()), 0)

    def waits(self) -> bool:
        """Return whether rows wait for a place."""
        return self.queue is not None and self.queue.waits()

    def _clear_rows(self, rows: Tensor) -> None:
        """Set the given rows [B] bool back to their start, without tokens."""
        self.tokens[:, 1:].masked_fill_(rows[:, None], 0)
        for x in (self.frontier, self.last_frontier, self.age[:, 0]):
            x.masked_fill_(rows, 0)
        self.newest = 0

    def read_last_token(self) -> Tensor:
        """Read the last final token [B, 1]."""
        return self.tokens.gather(1, self.frontier[:, None])

    def next_positions(self, n: int) -> Tensor:
        """Return the first n open positions [B, n] of each row, one after the other; they may exceed the length."""
        return self.frontier[:, None] + self.numbers[:n]

    def mask_new_rows(self, drafts: Tensor) -> Tensor:
        """Replace drafts [B, n] by -1 in rows that have made no pass yet."""
        return drafts if self.newest else drafts.masked_fill(self.age == 0, -1)

    def advance(self, tokens: Tensor, n_kept: Tensor, nodes: Tensor | None = None) -> Step:
        """Write a pass's tokens [B, W] from the first open position on, move the frontier by n_kept [B], those that are
        final, and return the step. Tokens past `end` are not counted: the grammar forces them at no pass, so that a row
        is done in the same pass whatever the other rows do. nodes: see `Step`."""
        n_kept = n_kept.minimum(self.end - self.frontier)
        self.tokens.scatter_(1, self.next_positions(tokens.shape[1]) + 1, tokens)
        self.last_frontier.copy_(self.frontier)
        self.frontier += n_kept
        self.age += 1
        self.count_pass()
        return Step(tokens, n_kept, self.last_frontier.clone(), nodes)

    def count_pass(self) -> None:
        """Count a pass that was made."""
        self.step += 1
        self.newest += 1


class ByPosition:
    """Random numbers of the next open positions. A CPU reuses what it drew in earlier passes. A GPU draws anew in each
    pass, because drawing is cheap there and reading how far rows have come would synchronise."""

    def __init__(self, line: SequenceBuffer, draw: Callable[[Tensor], Tensor]):
        """Set the buffer and the function draw(positions [B, n]) -> [B, n, ...] that draws the numbers."""
        self.line, self.draw = line, draw
        self.held: tuple[Tensor, Tensor] | None = None  # [B] first positions, and what was drawn from there on

    def take_next(self, n: int) -> Tensor:
        """Return the numbers [B, n, ...] of the next n positions of each row; on a CPU they are drawn only if those of
        earlier calls do not cover them."""
        line = self.line
        if line.static or line.frontier.device.type != "cpu":
            return self._draw_next(n)
        if self.held is not None and line.newest:  # otherwise a row was replaced, and its noise is another
            first, drawn = self.held
            shift = (line.frontier - first).numpy()
            low, high = int(shift.min()), int(shift.max())
            if high + n <= drawn.shape[1]:
                if low == high:
                    return drawn[:, low : low + n]
                slots = (line.frontier - first)[:, None] + torch.arange(n)
                return drawn[torch.arange(len(first))[:, None], slots]
        remaining = line.model.length - int(line.frontier.min())
        self.held = line.frontier.clone(), self._draw_next(max(n, min(n + AHEAD, remaining)))
        return self.held[1][:, :n]

    def _draw_next(self, n: int) -> Tensor:
        """Draw the numbers [B, n, ...] of the next n positions anew."""
        return self.draw(self.line.frontier[:, None] + torch.arange(n, device=self.line.frontier.device))


def make_races(line: SequenceBuffer, noise: Noise) -> ByPosition:
    """Make the source of the unit exponentials [B, n, V] by which the tokens of the next n positions are drawn."""
    return ByPosition(line, lambda positions: noise.exponential("sample", positions, line.model.vocab))


def make_trials(line: SequenceBuffer, noise: Noise, siblings: int) -> ByPosition:
    """Make the source of the uniforms [B, n, siblings] by which candidates are accepted: one a position and sibling."""
    each = torch.arange(siblings, device=line.frontier.device)
    return ByPosition(line, lambda positions: noise.uniform("accept", positions[..., None] * siblings + each))
