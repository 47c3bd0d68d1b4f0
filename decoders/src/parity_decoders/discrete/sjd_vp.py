"""SJD-VP: speculative Jacobi decoding that draws drafts towards tokens whose probability rises from pass to pass."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import normalize, sample_token, verify
from parity_decoders.window import ProbsByPosition, Window

CLAIM = "lossless"
ORIGIN = "account"
EXACT_WITH = {"store": "drawn"}
SOURCE = (
    "Shan et al. 2026 (arXiv 2603.27115), from its abstract: exponent and both stored distributions are our reading"
)


@torch.inference_mode()
def sjd_vp(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    strength: Annotated[float, Interval(ge=0, le=10)] = 1.0,
    store: Literal["target", "drawn"] = "drawn",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
) -> Iterator[Step]:
    """Decode like `sjd`, by a window of drafts, but draw the next drafts from p (p / p')^strength, normalised, where p'
    is the slot's distribution in the pass before.

    window    W, tokens per pass
    strength  how far drafts follow the change of probability; 0 is `sjd`
    store     the distribution that the next pass verifies a draft against: the one it was "drawn" from, which is exact,
              or p, the "target" distribution of this pass, as if the drafts were SJD's, which is biased
    init      as in `sjd`
    """
    slots = Window(model, start, noise, window, init, stores="p" if store == "target" else "own")
    previous = ProbsByPosition(noise, window, model.vocab)  # those of the pass before

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p = slots.compute_probs(draft)
        u = slots.draw_uniforms("accept")
        e = slots.draw_exponentials()
        rise = (p / previous.read(slots.positions).clamp(min=torch.finfo(p.dtype).tiny)).clamp(max=1e6) ** strength
        drawn = torch.where(slots.find_new_slots()[..., None], p, normalize(p * rise))
        previous.write(slots.positions, p)
        tokens, n_kept = verify(p, q, draft, point, u, e)
        after_correction = torch.arange(window, device=p.device) >= n_kept[:, None]
        return slots.advance(torch.where(after_correction, sample_token(drawn, e), tokens), n_kept, p, drawn)

    return slots.repeat(run_pass)
