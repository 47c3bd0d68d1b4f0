"""Speculative Jacobi decoding: Jacobi iteration with a probabilistic criterion, for sampling."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.models.protocol import TokenModel
from parity.noise import Noise
from parity.steps import Step
from parity.verification import race, slide, verify

CLAIM = "lossless"
SOURCE = "Teng et al. 2024, sec. 4.1 (iteration) and 4.2 (initialisation)"


@torch.inference_mode()
def sjd(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 16,
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    refine: bool = True,
) -> Iterator[Step]:
    """Each pass verifies the window's drafts left to right against the laws they were drawn from, and redraws what is not accepted.

    window  W, the number of tokens decoded per pass
    init    drafts of slots new in the window: uniformly random tokens; the token to the left or above, repeated; or a draw from
            the law predicted for the position to the left or above. Where that position does not exist: random.
    refine  False draws all unaccepted slots anew by `init` instead of from p (eq. 3 off; the paper's fig. 14)
    """
    B, L, V = len(start), model.length, model.vocab
    rows, slot = torch.arange(B, device=start.device)[:, None], torch.arange(window, device=start.device)[None]
    at = torch.zeros_like(start)  # [B] first open position
    line = torch.zeros(B, L + window + 1, dtype=start.dtype, device=start.device)  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    laws = None  # [B, L + window, V] the law last predicted at each position, where `init` reads it

    def new_drafts(step: int, where: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drafts, laws and point flags for slots at `where` [B, W]; positions before `end` [B] have been predicted."""
        forced = model.forced[where.clamp(max=L - 1)]
        uniform = (noise.uniform("draft", step * window + slot) * V).long().clamp(max=V - 1)
        token, q, point = uniform, uniform.new_zeros((), dtype=noise.dtype), torch.ones_like(where, dtype=torch.bool)
        if init != "random":
            back = model.width if init.endswith("above") else 1
            source = where - back * (-((end[:, None] - 1 - where) // back)).clamp(min=1)  # the nearest such position predicted
            exists = (source >= 0) & (source < end[:, None])
            source = source.clamp(min=0)
            if init.startswith("repeat"):
                token = torch.where(exists, line.gather(1, source + 1), token)
            elif laws is not None:
                q = laws[rows, source]
                token = torch.where(exists, race(q, noise.exponential("draft", step * window + slot, V)), token)
                point = ~exists
        return torch.where(forced >= 0, forced, token), q, point | (forced >= 0)

    draft, _, point = new_drafts(0, at[:, None] + slot, at)
    q: Tensor | None = None
    for step in count():
        first = int(at.min())
        if first >= L:
            return
        W = min(window, L - first)  # the window shrinks at the end of the image
        where = at[:, None] + slot[:, :W]
        feed = torch.cat([line.gather(1, at[:, None]), draft[:, : W - 1]], 1)
        p = model.logits(feed, (where - 1).clamp(max=L - 1)).softmax(-1)
        index = step * window + slot[:, :W]
        u, exponential = noise.uniform("accept", index), noise.exponential("sample", index, V)
        tokens, kept = verify(p, p if q is None else q[:, :W], draft[:, :W], point[:, :W], u, exponential)
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)

        line.scatter_(1, where + 1, tokens)
        if init.startswith("sample"):
            laws = p.new_zeros(B, L + window, V) if laws is None else laws
            laws[rows, where] = p
        carried, new = slide(kept, window, tokens)
        if not refine:
            new = torch.ones_like(new)
        end, at = at + W, at + kept
        start_draft, start_q, start_point = new_drafts(step + 1, at[:, None] + slot, end if refine else at)
        draft = torch.where(new, start_draft, carried)
        q = slide(kept, window, p)[0]  # the law of a fresh draft is the p it was drawn from
        if init.startswith("sample"):
            q = torch.where(new[..., None], start_q, q)
        point = new & start_point
