"""Jacobi decoding: parallel fixed-point iteration with deterministic matching."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import match, slide
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
COUPLED_WITH = {"coupling": "shared"}
SOURCE = "Song et al. 2021; as a baseline in Teng et al. 2024, sec. 3.2 and table 1"


@torch.inference_mode()
def jacobi(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 16,
    coupling: Literal["fresh", "shared"] = "fresh",
) -> Iterator[Step]:
    """Each pass draws every token of the window anew from its law and keeps the run that came out as it was fed, and one more.

    coupling  "fresh": new noise each pass, as the papers' baseline. "shared": one race per position in all passes (Gumbel
              coupling), so a law that moves little returns its old token, and the result equals `ar` under the same noise.
    """
    L, V = model.length, model.vocab
    slot = torch.arange(window, device=start.device)[None]
    at = torch.zeros_like(start)  # [B] first open position
    last = start  # [B] the token before it

    def new_drafts(step: int, where: Tensor) -> Tensor:
        """Uniformly random tokens, but the forced one where the grammar forces one."""
        forced = model.forced[where.clamp(max=L - 1)]
        return torch.where(
            forced >= 0, forced, (noise.uniform("draft", step * window + slot) * V).long().clamp(max=V - 1)
        )

    draft = new_drafts(0, at[:, None] + slot)
    for step in count():
        first = int(at.min())
        if first >= L:
            return
        W = min(window, L - first)  # the window shrinks at the end of the image
        where = at[:, None] + slot[:, :W]
        p = model.logits(torch.cat([last[:, None], draft[:, : W - 1]], 1), (where - 1).clamp(max=L - 1)).softmax(-1)
        index = where if coupling == "shared" else step * window + slot[:, :W]
        tokens, kept = match(p, draft[:, :W], noise.exponential("sample", index, V))
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)
        last = torch.cat([last[:, None], tokens], 1).gather(1, kept[:, None])[:, 0]
        at = at + kept
        carried, new = slide(kept, window, tokens)
        draft = torch.where(new, new_drafts(step + 1, at[:, None] + slot), carried)
