"""Draws by position: a token is decided by the same numbers in whichever pass its position is looked at."""

from collections.abc import Callable

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.line import Line

AHEAD = 32  # positions that are drawn beyond those asked for, as the next passes will ask for most of them again


class ByPosition:
    """Random numbers of the open positions of a line. A CPU keeps what it drew; a GPU, where drawing costs little and
    asking how far rows have come is a wait, draws them each time."""

    def __init__(self, line: Line, draw: Callable[[Tensor], Tensor]):
        """draw(positions [B, n]) -> [B, n, ...]."""
        self.line, self.draw = line, draw
        self.held: tuple[Tensor, Tensor] | None = None  # [B] first positions, and what was drawn from there on

    def ahead(self, n: int) -> Tensor:
        """[B, n, ...] of the first n open positions."""
        line = self.line
        if line.at.device.type != "cpu":
            return self._drawn(n)
        if self.held is not None and line.newest:  # else a row has begun, whose noise is another's
            first, drawn = self.held
            gone = (line.at - first).numpy()
            low, high = int(gone.min()), int(gone.max())
            if high + n <= drawn.shape[1]:
                if low == high:
                    return drawn[:, low : low + n]
                slots = (line.at - first)[:, None] + torch.arange(n)
                return drawn[torch.arange(len(first))[:, None], slots]
        left = line.model.length - int(line.at.min())
        self.held = line.at, self._drawn(max(n, min(n + AHEAD, left)))
        return self.held[1][:, :n]

    def _drawn(self, n: int) -> Tensor:
        return self.draw(self.line.at[:, None] + torch.arange(n, device=self.line.at.device))


def races(line: Line, noise: Noise) -> ByPosition:
    """Unit exponentials [B, n, V] that tokens are drawn by."""
    return ByPosition(line, lambda positions: noise.exponential("sample", positions, line.model.vocab))


def trials(line: Line, noise: Noise, siblings: int) -> ByPosition:
    """Uniforms [B, n, siblings] that candidates are accepted by, one a sibling."""
    each = torch.arange(siblings, device=line.at.device)
    return ByPosition(line, lambda positions: noise.uniform("accept", positions[..., None] * siblings + each))
