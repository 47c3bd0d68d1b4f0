"""Speculative Jacobi decoding: Jacobi iteration with a probabilistic criterion, for sampling."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.drafting import Board
from parity.decoders.steps import Step
from parity.decoders.verification import slide, verify
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
EXACT_WITH = {"tolerance": 0.0}
SOURCE = "Teng et al. 2024, sec. 4.1 (iteration) and 4.2 (initialisation); tolerance: the naive lossy control of the GSD supplement, fig. 3"


@torch.inference_mode()
def sjd(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 16,
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    refine: bool = True,
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> Iterator[Step]:
    """Each pass verifies the window's drafts left to right against the laws they were drawn from, and redraws what is not accepted.

    window     W, the number of tokens decoded per pass
    init       drafts of slots new in the window: uniformly random tokens; the token to the left or above, repeated; or a draw from
               the law predicted for the position to the left or above. Where that position does not exist: random.
    refine     False draws all unaccepted slots anew by `init` instead of from p (eq. 3 off; the paper's fig. 14)
    tolerance  added to every acceptance probability: what relaxing without care costs. 0 is exact.
    """
    L, V = model.length, model.vocab
    slot = torch.arange(window, device=start.device)[None]
    at = torch.zeros_like(start)  # [B] first open position
    board = Board(model, start, noise, window, init)
    draft, q, point = board.drafts(0, at[:, None] + slot, at)
    for step in count():
        first = int(at.min())
        if first >= L:
            return
        W = min(window, L - first)  # the window shrinks at the end of the image
        where = at[:, None] + slot[:, :W]
        feed = torch.cat([board.line.gather(1, at[:, None]), draft[:, : W - 1]], 1)
        p = model.logits(feed, (where - 1).clamp(max=L - 1)).softmax(-1)
        index = step * window + slot[:, :W]
        u, exponential = noise.uniform("accept", index), noise.exponential("sample", index, V)
        tokens, kept = verify(p, p if q is None else q[:, :W], draft[:, :W], point[:, :W], u, exponential, tolerance)
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)

        board.write(where, tokens, p)
        carried, new = slide(kept, window, tokens)
        if not refine:
            new = torch.ones_like(new)
        end, at = at + W, at + kept
        fresh = board.drafts(step + 1, at[:, None] + slot, end if refine else at)
        draft = torch.where(new, fresh.tokens, carried)
        q = slide(kept, window, p)[0]  # the law of a fresh draft is the p it was drawn from
        if fresh.q is not None:
            q = torch.where(new[..., None], fresh.q, q)
        point = new & fresh.point
