"""Where the tokens of an image stand: rows of one grid, or of several that are drawn one after the other."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError


class Row(NamedTuple):
    """A row of a grid."""

    first: int  # position of its first token
    end: int  # position after its last token
    is_top: bool  # whether it is the first row of its grid


class Grid(NamedTuple):
    """The rows of an image. Numbers where one grid holds all positions; else a number for each position.

    width  [B or 1, L] tokens in the row of a position, line separators included
    start  [B or 1, L] first position of its grid
    """

    width: Tensor | int
    start: Tensor | int = 0

    def look_up(self, positions: Tensor) -> tuple[Tensor | int, Tensor | int]:
        """Look up width and start at positions [B, S]; positions past the end have those of the last."""
        if isinstance(self.width, int):
            return self.width, self.start
        assert isinstance(self.start, Tensor)
        positions = positions.clamp(max=self.width.shape[1] - 1)
        width, start = (x.expand(len(positions), -1).gather(1, positions) for x in (self.width, self.start))
        return width, start

    def find_widest(self) -> int:
        """Find the largest number of tokens in a row."""
        return self.width if isinstance(self.width, int) else int(self.width.max())

    def list_rows(self, name: str, length: int) -> list[Row]:
        """List the rows of the first `length` positions. Raises DecodingError that names decoder `name` if images of
        the batch have other rows."""
        if isinstance(self.width, int):
            firsts = range(0, length, self.width)
            return [Row(n, min(n + self.width, length), n == 0) for n in firsts]
        assert isinstance(self.start, Tensor)
        if bool((self.width != self.width[:1]).any()) or bool((self.start != self.start[:1]).any()):
            raise DecodingError(f"{name}: images of several sizes in a batch; allowed: one size for all rows")
        width, start = self.width[0].tolist(), self.start[0].tolist()
        rows: list[Row] = []
        while not rows or rows[-1].end < length:
            n = rows[-1].end if rows else 0
            rows.append(Row(n, min(n + width[n], length), n == start[n]))
        return rows


def make_grid(sizes: list[list[tuple[int, int]]], length: int, device: Any) -> Grid:
    """Make the grid of a batch from the (rows, columns) of each image's grids in the order of drawing. Each position
    after the last grid is a grid of its own."""
    widths, starts = [], []
    for grids in sizes:
        width: list[int] = []
        start: list[int] = []
        for rows, columns in grids:
            start += [len(width)] * (rows * columns)
            width += [columns] * (rows * columns)
        start += range(len(width), length)
        width += [1] * (length - len(width))
        widths.append(width[:length])
        starts.append(start[:length])
    if all(row == widths[0] for row in widths) and all(row == starts[0] for row in starts):
        widths, starts = widths[:1], starts[:1]
    return Grid(torch.tensor(widths, device=device), torch.tensor(starts, device=device))


def find_grid(model: Any) -> Grid:
    """Find the grid of a token model: its `grid` if it has one, else rows of its `width`."""
    grid: Grid | None = getattr(model, "grid", None)
    return Grid(model.width) if grid is None else grid
