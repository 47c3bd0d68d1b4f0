"""ZipAR: rows of the picture decoded side by side, each some tokens behind the one above."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import race
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossy"
SOURCE = "He et al. 2025 (ZipAR), with a fixed window s, here `ahead`; the window that adapts by rejection is not in it"


class Rows:
    """The rows of the picture: positions where each begins, ends and stands, which is the first that is open."""

    def __init__(self, forced: list[int], width: int):
        """forced [L]: the token that the grammar forces at a position, or -1."""
        self.forced, self.begun = forced, 0
        self.first = list(range(0, len(forced), width))
        self.end = [min(n + width, len(forced)) for n in self.first]
        self.head = [self.choice(n, stop) for n, stop in zip(self.first, self.end, strict=True)]

    def choice(self, n: int, stop: int) -> int:
        """The first position from n on where the model chooses, or `stop`."""
        return next((i for i in range(n, stop) if self.forced[i] < 0), stop)

    def open(self) -> bool:
        return any(head < stop for head, stop in zip(self.head, self.end, strict=True))

    def starting(self, ahead: int) -> range:
        """Rows that start now: each once `ahead` tokens of the one above are done, or all of them."""
        begun = self.begun
        while self.begun < len(self.first):
            above = self.begun - 1
            if self.begun and self.head[above] - self.first[above] < min(ahead, self.end[above] - self.first[above]):
                break
            self.begun += 1
        return range(begun, self.begun)

    def active(self) -> list[int]:
        return [r for r in range(self.begun) if self.head[r] < self.end[r]]

    def advance(self, row: int) -> range:
        """Move a row's head on to the next choice: the positions that became final, the forced ones behind it among
        them."""
        head, self.head[row] = self.head[row], self.choice(self.head[row] + 1, self.end[row])
        return range(head, self.head[row])


@torch.inference_mode()
def zipar(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    ahead: Annotated[int, Field(ge=1, le=4096)] = 8,
) -> Iterator[Step]:
    """A row starts once `ahead` tokens of the row above are done; each pass decodes one token in every row that has
    started and not ended.

    The rest of the row above is a hole to those tokens: that is what it costs. From the row's width on nothing is: the
    tokens are `ar`'s, under the same noise. Else there are width + (rows - 1) ahead passes.

    The first token of a row follows the last of the row above, which is not there yet. The last token decoded in the
    row above stands in for it (a forced one needs none), and stays until the true one is fed: else the model would have
    to begin a row behind a hole. The released code lets the last token decoded two rows above stand in, and decodes the
    first row alone; at its window of half a row that is the token over the missing one.
    """
    forced, width, device = model.forced.tolist(), model.width, start.device
    # The token at position i is line[:, i + 1].
    line = torch.cat([start[:, None], model.forced.clamp(min=0).expand(len(start), -1)], 1)
    rows, unfed = Rows(forced, width), {-1}  # positions whose tokens the model has not seen
    while rows.open():
        for row in rows.starting(ahead):
            above, hole = row - 1, rows.end[row - 1] - 1
            if row and rows.head[above] <= hole:
                if forced[hole] < 0:
                    line[:, hole + 1] = line[:, rows.head[above]]  # the stand-in
                unfed.add(hole)
            unfed.update(range(rows.first[row], rows.head[row]))
        feed, active = sorted(unfed), rows.active()
        positions = torch.tensor(feed, device=device).expand(len(start), -1)
        logits = model.logits(line.gather(1, positions + 1), positions)
        p = logits[:, [feed.index(rows.head[r] - 1) for r in active]].softmax(-1)
        where = torch.tensor([rows.head[r] for r in active], device=device)
        line[:, where + 1] = race(p, noise.exponential("sample", where[None], model.vocab))
        unfed = {n for r in active for n in rows.advance(r)}
        final = torch.tensor(sorted(unfed), device=device).expand(len(start), -1)
        nodes, kept = (torch.full_like(start, n) for n in (len(feed), final.shape[1]))
        yield Step(line.gather(1, final + 1), kept, final, nodes)
