"""SJD++: speculative Jacobi decoding that keeps likely drafts after a rejection instead of drawing them anew."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import probability, verify
from parity_decoders.window import Window

CLAIM = "lossless"
ORIGIN = "account"
REFILLS = True
EXACT_WITH = {"store": "drawn"}
SOURCE = "Teng et al. 2025 (arXiv 2512.07503), eq. 6, as others describe it; store: drawn is this project's"


def reuse(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, tau: float, store: str) -> tuple[Tensor, Tensor]:
    """Decide which drafts [B, W] are likely enough to be kept; also returns the distribution [B, W, V] stored for each
    slot.

    A draft x ~ q is kept if p(x) / q(x) > tau (eq. 6), else a draw from p takes its place. So its distribution is
    q 1[p > tau q] + p sum(q 1[p <= tau q]), and not p. Point drafts have no such distribution: "drawn" redraws them.
    """
    if store == "printed":
        return probability(p, draft) > tau * torch.where(point, 1, probability(q, draft)), p
    likely = (p > tau * q) & ~point[..., None]
    mixture = torch.where(likely, q, 0) + p * torch.where(likely, 0, q).sum(-1, keepdim=True)
    return probability(likely, draft), torch.where(point[..., None], p, mixture)


@torch.inference_mode()
def sjd_pp(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 32,
    tau: Annotated[float, Interval(ge=0, le=100)] = 0.5,
    store: Literal["printed", "drawn"] = "printed",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
) -> Iterator[Step]:
    """Decode like `sjd`, by a window of drafts, but keep drafts after the first rejected one if the new distribution
    finds them likely.

    window  W, tokens per pass
    tau     a draft is kept if p / q exceeds it: 0 keeps all that are possible, a large value none, which is `sjd`
    store   the distribution stored for a slot after the correction. "printed": p, also for a kept draft, which is
            biased. "drawn": the distribution that the token in the slot really has, which is exact
    init    as in `sjd`
    """
    slots = Window(model, start, noise, window, init, stores="p" if store == "printed" else "own")

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p, u = slots.compute_probs(draft), slots.draw_uniforms("accept")
        tokens, n_kept = verify(p, q, draft, point, u, slots.draw_exponentials())
        likely, own = reuse(p, q, draft, point, tau, store)
        after_correction = torch.arange(window, device=p.device) >= n_kept[:, None]
        return slots.advance(torch.where(after_correction & likely, draft, tokens), n_kept, p, own)

    return slots.repeat(run_pass)
