"""ZipAR: rows of the image decoded side by side, each some tokens after the one above."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.grid import find_grid
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import make_probs, sample_token

CLAIM = "lossy"
SOURCE = "He et al. 2025 (ZipAR), with a fixed window s, here `ahead`; the window that adapts by rejection is not in it"


@torch.inference_mode()
def zipar(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    ahead: Annotated[int, Interval(ge=1, le=4096), Counts("lag", small=1, most="row")] = 8,
) -> Iterator[Step]:
    """Start each row of the image once `ahead` tokens of the row above are done; decode one token in every open row per
    pass.

    ahead  tokens of the row above that must be done. From the row's width on, the tokens are those of `ar`; below, a
           token does not see the rest of the row above, which is what is lossy. There are width + (rows - 1) ahead
           passes

    The first token of a row follows the last of the row above, which does not exist yet. The last token decoded in the
    row above takes its place until the true one is fed. The released code takes the last token decoded two rows above,
    and decodes the first row alone.
    """
    L = model.length
    forced = model.forced.tolist()
    device = start.device
    # The buffer starts with the prompt's last token: the token at position i is line[:, i + 1].
    line = torch.cat([start[:, None], model.forced.clamp(min=0).expand(len(start), -1)], 1)
    rows = find_grid(model).list_rows("zipar", L)
    first, end = [row.first for row in rows], [row.end for row in rows]

    def find_choice(n: int, stop: int) -> int:
        """Find the first position from n on where the model chooses, or the row's end."""
        return next((i for i in range(n, stop) if forced[i] < 0), stop)

    head = [find_choice(n, stop) for n, stop in zip(first, end, strict=True)]  # first open position of each row

    def is_due(row: int) -> bool:
        """Return whether a row of the image may start: `ahead` tokens of the row above, or all, are done; all if that
        is a row of another grid."""
        if row == 0 or row == len(rows):
            return row == 0
        above = rows[row - 1]
        size = above.end - above.first
        return head[row - 1] - above.first >= (size if rows[row].is_top else min(ahead, size))

    unfed = {-1}  # positions whose tokens the model has not seen
    n_started = 0  # rows that have started
    while head != end:
        while is_due(n_started):
            row_above = n_started - 1
            if n_started and head[row_above] < end[row_above]:
                if forced[end[row_above] - 1] < 0:
                    line[:, end[row_above]] = line[:, head[row_above]]  # it stands in for the true one
                unfed.add(end[row_above] - 1)
            unfed.update(range(first[n_started], head[n_started]))
            n_started += 1
        feed = sorted(unfed)
        active = [r for r in range(n_started) if head[r] < end[r]]
        positions = torch.tensor(feed, device=device).expand(len(start), -1)
        logits = model.logits(line.gather(1, positions + 1), positions)
        p = make_probs(logits[:, [feed.index(head[r] - 1) for r in active]])
        drawn_positions = torch.tensor([head[r] for r in active], device=device)
        line[:, drawn_positions + 1] = sample_token(p, noise.exponential("sample", drawn_positions[None], model.vocab))
        next_head = {r: find_choice(head[r] + 1, end[r]) for r in active}
        unfed = {n for r in active for n in range(head[r], next_head[r])}
        head = [next_head.get(r, n) for r, n in enumerate(head)]
        final = torch.tensor(sorted(unfed), device=device).expand(len(start), -1)
        nodes, n_kept = (torch.full_like(start, n) for n in (len(feed), final.shape[1]))
        yield Step(line.gather(1, final + 1), n_kept, final, nodes)
