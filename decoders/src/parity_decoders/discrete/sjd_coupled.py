"""Speculative coupled decoding: Jacobi iteration whose redrawn tokens are coupled to the ones they replace."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import count_leading, probability, sample_token, transport
from parity_decoders.window import Window

CLAIM = "lossless"
REFILLS = True
EXACT_WITH = {"store": "p", "correct": "residual"}
COUPLED_WITH = {"coupling": "gumbel"}
SOURCE = (
    "So et al. 2025 (speculative coupled decoding: MC-SJD, GS), with the stored distribution corrected; warm: this"
    " project"
)


@torch.inference_mode()
def sjd_coupled(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 32,
    coupling: Literal["gumbel", "maximal"] = "gumbel",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "sample_above",
    warm: bool = False,
    store: Literal["p", "q"] = "p",
    correct: Literal["residual", "p"] = "residual",
) -> Iterator[Step]:
    """Move the window's drafts in each pass from their distributions q to the new distributions p, changing as few
    tokens as possible.

    window    W, tokens per pass
    coupling  "gumbel": one draw per position in all passes, so the tokens are those of `ar` under the same noise.
              "maximal": every draft, also after a rejection, is kept with probability min(1, p / q) and otherwise
              redrawn from the residual
    init      as in `sjd`
    warm      after the first pass, draft every slot from the distribution at the frontier, since the others were
              computed on noise
    store     the distribution remembered for a draft that was kept under maximal coupling: p, or the old q, as
              released, which is biased
    correct   under maximal coupling, what replaces the first rejected draft: a draw from the residual or, as released
              without maximal coupling, one from p, as for all drafts after it, which is biased
    """
    shared = coupling == "gumbel"
    stores: Literal["p", "own", "none"] = "none" if shared and not warm else "own" if store == "q" else "p"
    slots = Window(model, start, noise, window, init, warm=warm, shared=shared, stores=stores)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p, e = slots.compute_probs(draft), slots.draw_exponentials()
        own = p
        if shared:
            tokens = sample_token(p, e)
        elif correct == "p":
            fresh = sample_token(p, e)
            u = slots.draw_uniforms("accept")
            stays = torch.where(point, fresh == draft, u * probability(q, draft) < probability(p, draft))
            tokens = torch.where(stays.cumprod(-1) > 0, draft, fresh)
        else:
            tokens, stays = transport(p, q, draft, point, slots.draw_uniforms("accept"), e)
            if store == "q":
                own = torch.where(stays[..., None], q, p)
        return slots.advance(tokens, count_leading(tokens == draft) + 1, p, own)

    return slots.repeat(run_pass)
