"""The tokens a decoder has written so far, and the random numbers of those it writes next.

Rows of a batch may be at different positions. A position has the same random numbers in every pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.models.discrete.protocol import TokenModel

AHEAD = 32  # positions that are drawn beyond those asked for, as the next passes will ask for most of them again


def find_end(forced: Tensor) -> int:
    """Behind the last position whose token is drawn, of forced [L]: what is forced from there on costs no pass."""
    return 1 + int((forced < 0).nonzero().max())


class SequenceBuffer:
    """The tokens of every row, final ones and drafts, and how far each row has come.

    tokens  [B, L + 1 + spare]: position i is in tokens[:, i + 1], the prompt's last token (position -1) comes first;
            `spare` columns take what is drawn past the end
    at      [B] first open position
    before  [B] the same in the last pass
    step    passes made
    age     [B, 1] passes since the row began: less than `step` if it replaced a finished row
    newest  passes since any row began; 0: this pass is some row's first
    grammar whether tokens are forced
    end     behind the last position whose token is drawn
    """

    def __init__(self, model: TokenModel, start: Tensor, spare: int):
        self.model, self.step, self.newest = model, 0, 0
        self.queue = getattr(model, "queue", None)
        self.tokens = torch.zeros(len(start), model.length + 1 + spare, dtype=start.dtype, device=start.device)
        self.tokens[:, 0] = start
        self.frontier = self.last_frontier = torch.zeros_like(start)
        self.age = self.frontier[:, None]
        self.numbers = torch.arange(self.tokens.shape[1], device=start.device)
        self.end = model.length  # or where the grammar forces all that follows, which costs no pass
        self.grammar = getattr(model, "grammar", True)
        if self.grammar:
            self.end = find_end(model.forced)

    def count_remaining(self) -> int:
        """Open positions of the row that has the most, up to the last that is drawn; 0 when all are done.

        Rows that are done begin again if the model's queue has pictures that wait.
        """
        frontier = self.frontier
        if self.queue is not None and self.queue.waits():
            frontier = frontier.cpu()
            refilled = self.queue.fill(frontier >= self.end)
            if refilled is not None:
                self._clear_rows(refilled)
                return self.end
        return max(self.end - int(frontier.min()), 0)

    def _clear_rows(self, rows: Tensor) -> None:
        """Nothing is written in `rows` [B] bool."""
        self.tokens[:, 1:].masked_fill_(rows[:, None], 0)
        self.frontier, self.last_frontier = (x.masked_fill(rows, 0) for x in (self.frontier, self.last_frontier))
        self.age, self.newest = self.age.masked_fill(rows[:, None], 0), 0

    def read_last_token(self) -> Tensor:
        """[B, 1] the last final token."""
        return self.tokens.gather(1, self.frontier[:, None])

    def next_positions(self, n: int) -> Tensor:
        """[B, n] the first n open positions, counted on past a row's end."""
        return self.frontier[:, None] + self.numbers[:n]

    def mask_new_rows(self, drafts: Tensor) -> Tensor:
        """Drafts [B, n] of earlier passes; -1 in rows that have made no pass yet."""
        return drafts if self.newest else drafts.masked_fill(self.age == 0, -1)

    def advance(self, tokens: Tensor, n_kept: Tensor, nodes: Tensor | None = None) -> Step:
        """Write a pass's tokens [B, W] from the first open position on; n_kept [B] of them are final, less those past the
        end: what the grammar forces there costs no pass, so a row is done in the same one whatever others do."""
        n_kept = n_kept.minimum(self.end - self.frontier)
        self.tokens.scatter_(1, self.next_positions(tokens.shape[1]) + 1, tokens)
        self.last_frontier, self.frontier = self.frontier, self.frontier + n_kept
        self.step, self.newest, self.age = self.step + 1, self.newest + 1, self.age + 1
        return Step(tokens, n_kept, self.last_frontier, nodes)


class ByPosition:
    """Random numbers of the open positions of a line. A CPU keeps what it drew; a GPU, where drawing costs little and
    asking how far rows have come is a wait, draws them each time."""

    def __init__(self, line: SequenceBuffer, draw: Callable[[Tensor], Tensor]):
        """draw(positions [B, n]) -> [B, n, ...]."""
        self.line, self.draw = line, draw
        self.held: tuple[Tensor, Tensor] | None = None  # [B] first positions, and what was drawn from there on

    def take_next(self, n: int) -> Tensor:
        """[B, n, ...] of the first n open positions."""
        line = self.line
        if line.frontier.device.type != "cpu":
            return self._draw_next(n)
        if self.held is not None and line.newest:  # else a row has begun, whose noise is another's
            first, drawn = self.held
            shift = (line.frontier - first).numpy()
            low, high = int(shift.min()), int(shift.max())
            if high + n <= drawn.shape[1]:
                if low == high:
                    return drawn[:, low : low + n]
                slots = (line.frontier - first)[:, None] + torch.arange(n)
                return drawn[torch.arange(len(first))[:, None], slots]
        remaining = line.model.length - int(line.frontier.min())
        self.held = line.frontier, self._draw_next(max(n, min(n + AHEAD, remaining)))
        return self.held[1][:, :n]

    def _draw_next(self, n: int) -> Tensor:
        return self.draw(self.line.frontier[:, None] + torch.arange(n, device=self.line.frontier.device))


def make_races(line: SequenceBuffer, noise: Noise) -> ByPosition:
    """Unit exponentials [B, n, V] that tokens are drawn by."""
    return ByPosition(line, lambda positions: noise.exponential("sample", positions, line.model.vocab))


def make_trials(line: SequenceBuffer, noise: Noise, siblings: int) -> ByPosition:
    """Uniforms [B, n, siblings] that candidates are accepted by, one a sibling."""
    each = torch.arange(siblings, device=line.frontier.device)
    return ByPosition(line, lambda positions: noise.uniform("accept", positions[..., None] * siblings + each))
