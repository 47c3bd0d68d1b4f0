"""Jacobi decoding: parallel fixed-point iteration with deterministic matching."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import count_leading, sample_token
from parity_decoders.window import Window

CLAIM = "lossless"
REFILLS = True
COUPLED_WITH = {"coupling": "shared"}
SOURCE = "Song et al. 2021; as a baseline in Teng et al. 2024, sec. 3.2 and table 1"


@torch.inference_mode()
def jacobi(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    coupling: Literal["fresh", "shared"] = "fresh",
) -> Iterator[Step]:
    """Redraw every token of the window from its distribution in each pass; keep the run that came out as it was fed,
    and one more.

    window    W, tokens per pass
    coupling  "fresh": new noise each pass, as the papers' baseline. "shared": one draw per position in all passes, so a
              distribution that moves little returns its old token, and the tokens are those of `ar` under the same
              noise
    """
    slots = Window(model, start, noise, window, shared=coupling == "shared", stores="none")

    def run_pass() -> Step:
        draft = slots.make_drafts().tokens
        tokens = sample_token(slots.compute_probs(draft), slots.draw_exponentials())
        return slots.advance(tokens, count_leading(tokens == draft) + 1)

    return slots.repeat(run_pass)
