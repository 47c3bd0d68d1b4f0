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


@torch.inference_mode()
def zipar(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    ahead: Annotated[int, Field(ge=1, le=4096)] = 8,
) -> Iterator[Step]:
    """A row starts once `ahead` tokens of the row above are done; each pass decodes one token in every row that has started and not ended.

    The rest of the row above is a hole to those tokens: that is what it costs. From the row's width on nothing is: the tokens are `ar`'s, under the
    same noise. Else there are width + (rows - 1) ahead passes.

    The first token of a row follows the last of the row above, which is not there yet. The last token decoded in the row above stands in for it
    (a forced one needs none), and stays until the true one is fed: else the model would have to begin a row behind a hole. The released code lets the
    last token decoded two rows above stand in, and decodes the first row alone; at its window of half a row that is the token over the missing one.
    """
    L, V, width, device = model.length, model.vocab, model.width, start.device
    forced = model.forced.tolist()
    line = torch.cat(
        [start[:, None], model.forced.clamp(min=0).expand(len(start), -1)], 1
    )  # the token at position i is line[:, i + 1]
    first = list(range(0, L, width))
    end = [min(n + width, L) for n in first]

    def at_choice(n: int, stop: int) -> int:
        """The first position from n on where the model chooses, or the row's end."""
        return next((i for i in range(n, stop) if forced[i] < 0), stop)

    def due(row: int) -> bool:
        above = row - 1
        return row == 0 or (row < len(first) and head[above] - first[above] >= min(ahead, end[above] - first[above]))

    head = [at_choice(n, stop) for n, stop in zip(first, end, strict=True)]  # first open position of each row
    unfed = {-1}  # positions whose tokens the model has not seen
    begun = 0  # rows that have started
    while any(h < stop for h, stop in zip(head, end, strict=True)):
        while due(begun):
            above = begun - 1
            if begun and head[above] < end[above]:
                if forced[end[above] - 1] < 0:
                    line[:, end[above]] = line[:, head[above]]  # the stand-in
                unfed.add(end[above] - 1)
            unfed.update(range(first[begun], head[begun]))
            begun += 1
        active = [r for r in range(begun) if head[r] < end[r]]
        feed = sorted(unfed)
        positions = torch.tensor(feed, device=device).expand(len(start), -1)
        p = model.logits(line.gather(1, positions + 1), positions)[
            :, [feed.index(head[r] - 1) for r in active]
        ].softmax(-1)
        where = torch.tensor([head[r] for r in active], device=device)
        line[:, where + 1] = race(p, noise.exponential("sample", where[None], V))
        unfed.clear()
        for r in active:
            after = at_choice(head[r] + 1, end[r])
            unfed.update(range(head[r], after))
            head[r] = after
        final = torch.tensor(sorted(unfed), device=device).expand(len(start), -1)
        yield Step(
            line.gather(1, final + 1), torch.full_like(start, final.shape[1]), final, torch.full_like(start, len(feed))
        )
