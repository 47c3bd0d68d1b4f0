"""The one accept-or-resample core of the discrete decoders.

Words, for a window of W positions:
- draft: the token proposed for a position before this pass; q is the law it was drawn from given the noise of earlier positions;
- p: the target's law at the position, given the tokens that were fed (final ones, then drafts);
- accepted: a draft that is kept; the run of accepted drafts ends at the first rejection;
- corrected: the token drawn in place of the first rejected draft. Accepted and corrected tokens are final, their law is p;
- fresh: tokens after the correction, drawn from p: the drafts of the next pass, whose law q is this p. Never an older q: published code
  that stores the old law of a kept token is measurably biased.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Verified(NamedTuple):
    tokens: Tensor  # [B, W] accepted, corrected, then fresh
    kept: Tensor  # [B] how many of them are final: accepted ones and the correction


def race(weights: Tensor, exponential: Tensor) -> Tensor:
    """One draw from unnormalised `weights` [..., V] by a race of unit exponentials [..., V]; zero weights never win."""
    return (weights / exponential).argmax(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q), unnormalised [..., V] (Leviathan et al. 2023, Alg. 1); p itself where rounding left nothing of it."""
    rest = (p - q).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


def verify(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float = 0.0) -> Verified:
    """Speculative sampling for every row at once (Leviathan et al. 2023, Alg. 1; SJD sec. 4.1, eqs. 1 to 3).

    p, q         [B, W, V] target and draft laws, float
    draft        [B, W]    draft ~ q
    point        [B, W]    bool: the draft is a given token (q is a point mass, the q passed is not read)
    u            [B, W]    uniform
    exponential  [B, W, V] unit exponentials

    A draft is accepted if u q(draft) < p(draft). A point draft is accepted if a draw from p hits it: also with probability
    p(draft), and a miss is already the residual's draw. So a window of one is plain sampling, token for token.
    `tolerance` > 0 is the naive lossy relaxation: it is added to every acceptance probability.
    """
    fresh = race(p, exponential)
    at = draft[..., None]
    own_p, own_q = p.gather(-1, at)[..., 0], q.gather(-1, at)[..., 0]
    likely = u * own_q < own_p + tolerance * own_q  # strict: p = 0 is never accepted, no 0/0
    hit = fresh == draft
    if tolerance:  # of the draws that miss, as many as the acceptance probability lacks
        hit = hit | (u * (1 - own_p) < tolerance)
    accepted = torch.where(point, hit, likely)
    return finish(p, q, draft, point, accepted, fresh, exponential)


def finish(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, accepted: Tensor, fresh: Tensor, exponential: Tensor) -> Verified:
    """The pass's tokens once it is known which drafts are `accepted` [B, W]: these, the correction of the first that is not, then `fresh`."""
    n = accepted.long().cumprod(-1).sum(-1)  # [B] length of the accepted run
    i = torch.arange(draft.shape[1], device=draft.device)
    first = n.clamp(max=draft.shape[1] - 1)[:, None]  # the first rejected slot (any slot, unused, if there is none)
    rows = first[..., None].expand(-1, -1, p.shape[-1])
    corrected = race(residual(p.gather(1, rows), q.gather(1, rows)), exponential.gather(1, rows))  # [B, 1]
    corrected = torch.where(point.gather(1, first), fresh.gather(1, first), corrected)
    tokens = torch.where(i < n[:, None], draft, torch.where(i == n[:, None], corrected, fresh))
    return Verified(tokens, (n + 1).clamp(max=draft.shape[1]))


def match(p: Tensor, draft: Tensor, exponential: Tensor) -> Verified:
    """Deterministic matching (Song et al. 2021): a draft is final if it equals the draw made from p, whatever it came from."""
    fresh = race(p, exponential)
    n = (fresh == draft).long().cumprod(-1).sum(-1)
    return Verified(fresh, (n + 1).clamp(max=draft.shape[1]))


def slide(kept: Tensor, window: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Move a window on by `kept` [B]: values [B, W, ...] to (values [B, window, ...] of the next window, new [B, window]).

    `new` marks slots that no value was computed for; what stands there is arbitrary.
    """
    W = values.shape[1]
    source = kept[:, None] + torch.arange(window, device=kept.device)
    index = source.clamp(max=W - 1)
    if values.ndim == 3:
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[2])), source >= W
    return values.gather(1, index), source >= W
