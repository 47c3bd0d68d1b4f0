"""ZipAR: rows of the picture decoded side by side, each some tokens behind the one above."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.counts import Counts
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
    ahead: Annotated[int, Field(ge=1, le=4096), Counts("lag", small=1, most="row")] = 8,
) -> Iterator[Step]:
    """A row of the image starts once `ahead` tokens of the row above are done. Each pass decodes one token in every
    open row.

    ahead  tokens of the row above that must be done. From the row's width on, the tokens are those of `ar`; below, a
           token does not see the rest of the row above, which is what is lossy. There are width + (rows - 1) ahead
           passes

    The first token of a row follows the last of the row above, which does not exist yet. The last token decoded in the
    row above takes its place until the true one is fed. The released code takes the last token decoded two rows above,
    and decodes the first row alone.
    """
    L, width, forced, device = model.length, model.width, model.forced.tolist(), start.device
    # The token at position i is line[:, i + 1].
    line = torch.cat([start[:, None], model.forced.clamp(min=0).expand(len(start), -1)], 1)
    first = list(range(0, L, width))
    end = [min(n + width, L) for n in first]

    def at_choice(n: int, stop: int) -> int:
        """The first position from n on where the model chooses, or the row's end."""
        return next((i for i in range(n, stop) if forced[i] < 0), stop)

    head = [at_choice(n, stop) for n, stop in zip(first, end, strict=True)]  # first open position of each row

    def due(row: int) -> bool:
        above = row - 1
        return row == 0 or (row < len(first) and head[above] - first[above] >= min(ahead, end[above] - first[above]))

    unfed, begun = {-1}, 0  # positions whose tokens the model has not seen; rows that have started
    while head != end:
        while due(begun):
            above = begun - 1
            if begun and head[above] < end[above]:
                if forced[end[above] - 1] < 0:
                    line[:, end[above]] = line[:, head[above]]  # the stand-in
                unfed.add(end[above] - 1)
            unfed.update(range(first[begun], head[begun]))
            begun += 1
        feed, active = sorted(unfed), [r for r in range(begun) if head[r] < end[r]]
        positions = torch.tensor(feed, device=device).expand(len(start), -1)
        logits = model.logits(line.gather(1, positions + 1), positions)
        p = logits[:, [feed.index(head[r] - 1) for r in active]].softmax(-1)
        where = torch.tensor([head[r] for r in active], device=device)
        line[:, where + 1] = race(p, noise.exponential("sample", where[None], model.vocab))
        after = {r: at_choice(head[r] + 1, end[r]) for r in active}
        unfed = {n for r in active for n in range(head[r], after[r])}
        head = [after.get(r, n) for r, n in enumerate(head)]
        final = torch.tensor(sorted(unfed), device=device).expand(len(start), -1)
        nodes, kept = (torch.full_like(start, n) for n in (len(feed), final.shape[1]))
        yield Step(line.gather(1, final + 1), kept, final, nodes)
