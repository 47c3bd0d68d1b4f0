"""Speculative coupled decoding: Jacobi iteration whose redrawn tokens are coupled to the ones they replace."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.drafting import Board
from parity.decoders.steps import Step
from parity.decoders.verification import race, residual, slide
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
EXACT_WITH = {"store": "p"}
COUPLED_WITH = {"coupling": "gumbel"}
SOURCE = "Speculative Coupled Decoding (MC-SJD and GS), with the stored law corrected; warm: this project"


@torch.inference_mode()
def sjd_coupled(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 32,
    coupling: Literal["gumbel", "maximal"] = "gumbel",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "sample_above",
    warm: bool = False,
    store: Literal["p", "q"] = "p",
) -> Iterator[Step]:
    """Each pass moves the whole window's drafts from their laws q to the new laws p, changing as few tokens as it can.

    coupling  "gumbel": one race per position in all passes, so the result equals `ar` under the same noise. "maximal": every draft, also
              behind a rejection, is kept with probability min(1, p / q) and else redrawn from the residual.
    init      as in `sjd`
    warm      after the first pass, whose laws behind the frontier were computed on noise, draft every slot from the frontier's law
    store     the law remembered for a draft that was kept under maximal coupling: "p", or, as released, the old "q", which is biased
    """
    L, V = model.length, model.vocab
    slot = torch.arange(window, device=start.device)[None]
    at = torch.zeros_like(start)  # [B] first open position
    board = Board(model, start, noise, window, init)
    shared = coupling == "gumbel"

    def exponential(step: int, where: Tensor) -> Tensor:
        return noise.exponential("sample", where if shared else step * window + slot[:, : where.shape[1]], V)

    draft, q, point = board.drafts(0, at[:, None] + slot, at)
    for step in count():
        first = int(at.min())
        if first >= L:
            return
        W = min(window, L - first)  # the window shrinks at the end of the image
        where = at[:, None] + slot[:, :W]
        feed = torch.cat([board.line.gather(1, at[:, None]), draft[:, : W - 1]], 1)
        p = model.logits(feed, (where - 1).clamp(max=L - 1)).softmax(-1)
        e = exponential(step, where)
        fresh, stays = race(p, e), torch.zeros_like(point[:, :W])
        if not shared and q is not None:
            own_p, own_q = (law.gather(-1, draft[:, :W, None])[..., 0] for law in (p, q[:, :W]))
            stays = ~point[:, :W] & (noise.uniform("accept", step * window + slot[:, :W]) * own_q < own_p)
            fresh = torch.where(point[:, :W], fresh, race(residual(p, q[:, :W]), e))
        tokens = torch.where(stays, draft[:, :W], fresh)
        n = (tokens == draft[:, :W]).long().cumprod(-1).sum(-1)
        kept = (n + 1).clamp(max=W).minimum(L - at)
        yield Step(tokens, kept, at)

        board.write(where, tokens, p)
        law = torch.where(stays[..., None], q[:, :W], p) if store == "q" and q is not None else p
        carried, new = slide(kept, window, tokens)
        frontier = p.gather(1, (kept - 1).clamp(min=0)[:, None, None].expand(-1, 1, V))
        end, at = at + W, at + kept
        ahead = at[:, None] + slot
        again = exponential(step + 1, ahead) if shared and (warm or init.startswith("sample")) else None
        drafts = board.drafts(step + 1, ahead, end, again)
        draft, q = torch.where(new, drafts.tokens, carried), slide(kept, window, law)[0]
        if drafts.q is not None:
            q = torch.where(new[..., None], drafts.q, q)
        point = new & drafts.point
        if warm and step == 0:
            q = frontier.expand(-1, window, -1)
            forced = model.forced[ahead.clamp(max=L - 1)]
            drawn = race(q, noise.exponential("draft", (step + 1) * window + slot, V) if again is None else again)
            draft, point = torch.where(forced >= 0, forced, drawn), forced >= 0
