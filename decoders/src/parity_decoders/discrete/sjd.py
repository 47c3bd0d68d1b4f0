"""Speculative Jacobi decoding: Jacobi iteration with a probabilistic criterion, for sampling."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import verify
from parity_decoders.window import Window

CLAIM = "lossless"
REFILLS = True
EXACT_WITH = {"tolerance": 0.0}
SOURCE = (
    "Teng et al. 2024, sec. 4.1 and 4.2; tolerance: the naive lossy control of the GSD supplement, fig. 3; random: its"
    " Alg. 1, line 3"
)


@torch.inference_mode()
def sjd(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    refine: bool = True,
    tolerance: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    random: Literal["point", "uniform"] = "point",
) -> Iterator[Step]:
    """Verify the window's drafts in each pass, left to right, against the distributions they were drawn from, and
    redraw those that are not accepted.

    window     W, the number of tokens decoded per pass
    init       drafts of slots new in the window: uniformly random tokens; the token to the left or above, repeated; or
               a draw from the distribution predicted for the position to the left or above. Where that position does
               not exist: random.
    refine     False draws all unaccepted slots anew by `init` instead of from p (eq. 3 off; the paper's fig. 14)
    tolerance  added to every acceptance probability: what relaxing without care costs. 0 is exact.
    random     what a random draft is verified against: itself, so that it is accepted with the token's probability p,
               as released ("point"); or the uniform distribution that it was drawn from, with min(1, p / q) (GSD's
               Rand-init). Both are exact.
    """
    slots = Window(model, start, noise, window, init, refine=refine, random=random)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p, u = slots.compute_probs(draft), slots.draw_uniforms("accept")
        tokens, n_kept = verify(p, q, draft, point, u, slots.draw_exponentials(), tolerance)
        return slots.advance(tokens, n_kept, p)

    return slots.repeat(run_pass)
