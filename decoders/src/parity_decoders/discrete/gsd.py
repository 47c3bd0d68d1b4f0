"""Grouped speculative decoding: SJD that verifies a group of nearest tokens instead of the token."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import Verified, count_leading, finish, probability, sample_token
from parity_decoders.window import Window

CLAIM = "lossy"
REFILLS = True
SOURCE = "So et al. 2025 (GSD), supplement, Alg. 1 and 2"


def find_groups(
    p: Tensor, draft: Tensor, G: int, delta: float, d: float, vectors: Tensor | None, border: str, odd: str = "full"
) -> tuple[Tensor, Tensor]:
    """Find the group of each draft (Alg. 2, lines 2 to 11): tokens [B, W, G], and [B, W, G] bool which of them count.

    p [B, W, V], draft [B, W], vectors [V, D] (None: no distance is tested), border, odd: see `gsd`. A group holds the G
    tokens nearest to the draft in order of probability (G // 2 less likely ones, the draft, the rest likelier), without
    those further than delta in probability or d in embedding.
    """
    V = p.shape[-1]
    index = draft[..., None]
    p_draft = p.gather(-1, index)
    # The G // 2 next less likely tokens and the likelier ones next above; equally likely ones count as less likely.
    likelier = p > p_draft
    lower = p.masked_fill(likelier, -1).scatter_(-1, index, -1).topk(min(G // 2, V - 1))
    n_above = (G // 2 if odd == "printed" else G - G // 2) - 1
    upper = (-p).masked_fill_(~likelier, -2).topk(min(max(n_above, 0), V - 1))
    lower_in, upper_in = lower.values >= 0, upper.values > -2
    if border == "plain" and G > 1:
        # The released slice is empty where its start is negative, and the group is then the token alone.
        complete = lower_in.sum(-1, keepdim=True) == G // 2
        lower_in, upper_in = lower_in & complete, upper_in & complete
    members = torch.cat([index, lower.indices, upper.indices], -1)
    close = (p.gather(-1, members) - p_draft).abs() <= delta
    if vectors is not None:
        close &= (vectors[members] - vectors[index]).norm(dim=-1) <= d
    return members, torch.cat([torch.ones_like(index, dtype=torch.bool), lower_in, upper_in], -1) & close


def verify_grouped(
    p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, members: Tensor, counts: Tensor
) -> Verified:
    """Accept a draft with probability min(1, p(C) / q(C)) of its group C; correct by the residual of single tokens
    (Alg. 2, lines 12 to 19). members, counts [B, W, G]: from `find_groups`; the rest as in `verify`."""
    p_C, q_C = ((probs.gather(-1, members) * counts).sum(-1) for probs in (p, q))
    fresh = sample_token(p, exponential)
    # A point draft has q(C) = 1. A draw from p hits it, or, of the misses, the share that the group adds; the
    # other misses are draws from the residual.
    p_draft = probability(p, draft)
    hit = (fresh == draft) | (u * (1 - p_draft) < p_C - p_draft)
    return finish(p, q, draft, point, torch.where(point, hit, u * q_C < p_C), fresh, exponential)


def number_groups(p: Tensor, G: int) -> Tensor:
    """Assign each token of p [B, W, V] the number of its group, in disjoint groups of G neighbours in the order of
    p."""
    return p.argsort(-1).argsort(-1) // G


def verify_two_level(
    p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, v: Tensor, label: Tensor, G: int
) -> Verified:
    """Couple groups maximally, then the tokens inside a group: the two-level scheme made exact.

    label [B, W, V] numbers disjoint groups of at most G. (A draft's own neighbourhood will not do: neighbourhoods of
    two tokens overlap, and masses of overlapping groups are no distribution.) The group is kept with probability min(1,
    P(C) / Q(C)), otherwise drawn from (P - Q)+ over groups with a token from p inside. In a group that is kept, the
    token is kept with probability min(1, p(x|C) / q(x|C)), otherwise drawn from that residual. The distribution is p
    whatever the groups. No exact scheme keeps a draft more often than 1 - TV(p, q), so this cannot beat `sjd`'s rule;
    it makes a corrected token look like the draft.
    """
    blank = p.new_zeros(*p.shape[:-1], -(-p.shape[-1] // G))
    P, Q = (blank.scatter_add(-1, label, probs.to(p.dtype)) for probs in (p, q))  # probabilities of groups
    p_C, q_C = P.gather(-1, label), Q.gather(-1, label)  # [B, W, V] those of each token's group
    draft_label = label.gather(-1, draft[..., None])
    P_mine, Q_mine = (mass.gather(-1, draft_label)[..., 0] for mass in (P, Q))
    group_stays = u * Q_mine < P_mine
    token_stays = v * (probability(q, draft) * P_mine) < probability(p, draft) * Q_mine
    outer = (p_C - q_C).clamp(min=0) * p / p_C.clamp(min=torch.finfo(p.dtype).tiny)
    inner = (p * q_C - q * p_C).clamp(min=0) * (label == draft_label)
    weights = torch.where(group_stays[..., None], inner, outer)
    has_weight = weights.sum(-1, keepdim=True) > 0  # false where rounding leaves nothing
    fresh, corrected = sample_token(p, exponential), sample_token(torch.where(has_weight, weights, p), exponential)
    tokens = torch.where(point, fresh, torch.where(group_stays & token_stays, draft, corrected))
    n = count_leading(tokens == draft)
    i = torch.arange(draft.shape[1], device=draft.device)
    return Verified(torch.where(i <= n[:, None], tokens, fresh), (n + 1).clamp(max=draft.shape[1]))


@torch.inference_mode()
def gsd(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    group: Annotated[int, Interval(ge=1, le=4096), Counts("tokens", most="vocab")] = 14,
    delta: Annotated[float, Interval(ge=0, le=1)] = 0.15,
    distance: Annotated[float, Interval(ge=0, le=100)] = 0.5,
    space: Literal["codebook", "input"] = "codebook",
    border: Literal["clip", "plain"] = "clip",
    resample: Literal["token", "group"] = "token",
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    odd: Literal["full", "printed"] = "full",
    random: Literal["point", "uniform"] = "point",
) -> Iterator[Step]:
    """Decode like `sjd`, but accept a draft by the probability of its group: tokens near it in probability and code.

    window    W, tokens per pass
    group     G, the size of a group before thresholds; 1 is `sjd`
    delta     largest difference in probability to the draft
    distance  d, largest Euclidean distance to the draft
    space     vectors that the distance is measured between: the tokenizer's codebook, or the model's input embeddings,
              as released
    border    groups at the ends of the order are clipped; "plain", as released, leaves the token alone there
    resample  "token": Alg. 2. "group": draws the group, then the token in it, which is exact
    init      as in `sjd`
    odd       a group of odd G holds G tokens, or, as the slice of Alg. 2 is printed, one less: G // 2 less likely ones,
              the draft, G // 2 - 1 likelier ones
    random    as in `sjd`: a random draft's q(C) is 1, or its group's share of the vocabulary
    """
    vectors = getattr(model, "codebook" if space == "codebook" else "embeddings", None)
    slots = Window(model, start, noise, window, init, random=random)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p, u = slots.compute_probs(draft), slots.draw_uniforms("accept")
        inputs = (p, q, draft, point, u, slots.draw_exponentials())
        if resample == "token":
            groups = find_groups(p, draft, group, delta, distance, vectors, border, odd)
            tokens, n_kept = verify_grouped(*inputs, *groups)
        else:
            tokens, n_kept = verify_two_level(*inputs, slots.draw_uniforms("branch"), number_groups(p, group), group)
        return slots.advance(tokens, n_kept, p)

    return slots.repeat(run_pass)
