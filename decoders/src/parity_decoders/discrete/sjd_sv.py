"""SJD-SV: speculative Jacobi decoding that verifies drafts jointly, in runs of rising probability."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import one_hot, pad

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import accept_block, finish, probability, sample_token
from parity_decoders.window import Window

CLAIM = "lossless"
ORIGIN = "account"
REFILLS = True
EXACT_BY = "of Sun et al. 2024"
EXACT_WITH = {"verify": "block"}
SOURCE = "Zhang et al. 2026 (SJD-SV, ICML), as others describe it; verify: block is Sun et al. 2024, Alg. 2"


def accept_runs(p: Tensor, q: Tensor, u: Tensor, alpha: float) -> Tensor:
    """Decide which drafts [B, W] are accepted in runs; p, q [B, W] are their probabilities, u [B, W] uniform.

    A run is a stretch of drafts whose p does not fall. Its suffix is the shortest that holds the share alpha of the
    run's probabilities; the drafts before the suffix are not tested. The run is accepted up to the longest part of the
    suffix with u < prod(p / q), one u a run; none of it if no part of the suffix passes.
    """
    W = p.shape[1]
    falls = torch.cat([torch.ones_like(p[:, :1], dtype=torch.bool), p[:, 1:] < p[:, :-1]], 1)
    number = falls.cumsum(1)
    same_run = number[:, :, None] == number[:, None, :]  # [B, W, W] slots of one run
    up_to = same_run & torch.ones(W, W, dtype=torch.bool, device=p.device).tril()  # j <= i
    rest = (same_run.transpose(1, 2) & up_to.transpose(1, 2)) * p[:, None, :]  # p of j >= i
    share = rest.sum(-1) >= alpha * (same_run * p[:, None, :]).sum(-1)
    share_of_next = torch.cat([share[:, 1:] & ~falls[:, 1:], torch.zeros_like(falls[:, :1])], 1)
    tested = ~share_of_next
    ratio = torch.where(tested, p.clamp(min=1e-38).log() - q.clamp(min=1e-38).log(), 0)
    joint = (up_to * ratio[:, None, :]).sum(-1).exp()
    first = falls.long().mul(torch.arange(W, device=p.device)).cummax(1).values
    passes = tested & (p > 0) & (u.gather(1, first) < joint)
    return (up_to.transpose(1, 2) & passes[:, None, :]).any(-1) & (p > 0)


def verify_block(p: Tensor, q: Tensor, draft: Tensor, past: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Run `accept_block` on a window of drafts, without those `past` [B, W] bool the row's end, and with an empty slot
    added after them. Returns accepted [B, W] bool and scaled distributions [B, W, V]."""
    p, q, draft, u = (torch.cat([x, x[:, -1:]], 1) for x in (p, q, draft, u))
    accepted, scaled = accept_block(p, q, draft, pad(past, (0, 1), value=True), u)
    return accepted[:, :-1], scaled[:, :-1]


@torch.inference_mode()
def sjd_sv(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    alpha: Annotated[float, Interval(gt=0, le=1)] = 0.8,
    verify: Literal["suffix", "block"] = "suffix",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
) -> Iterator[Step]:
    """Decode like `sjd`, by a window of drafts, but accept drafts jointly, in runs of rising probability.

    window  W, tokens per pass
    alpha   the share of a run's probabilities that its tested suffix holds; 1 tests every draft
    verify  "suffix": as described, which is biased, since drafts before the suffix are not tested and a joint test
            needs a joint residual. "block": block verification of the whole window, which is exact
    init    as in `sjd`
    """
    slots = Window(model, start, noise, window, init)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p = slots.compute_probs(draft)
        u = slots.draw_uniforms("accept")
        e = slots.draw_exponentials()
        q = torch.where(point[..., None], one_hot(draft, p.shape[-1]), q)
        past = slots.positions >= slots.line.end  # a joint test reads no slot past the row's end
        if verify == "suffix":
            likely = probability(p, draft).masked_fill(past, 0)
            accepted = accept_runs(likely, probability(q, draft), u, alpha)
            scaled = p
        else:
            accepted, scaled = verify_block(p, q, draft, past, u)
        tokens, n_kept = finish(scaled, q, draft, torch.zeros_like(point), accepted, sample_token(p, e), e)
        return slots.advance(tokens, n_kept, p)

    return slots.repeat(run_pass)
