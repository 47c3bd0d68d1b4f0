"""Any-Subset Speculative Decoding: the model drafts for itself, and corrects itself by the joint density of one
pass."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Interval

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token, verify

CLAIM = "lossless"
SLOTS = True  # whether a rank is reached depends on those before it, so tests may stratify by slot
EXACT_WITH = {"tolerance": 0.0}
SOURCE = "Guo & Ermon 2025, Algorithm 1; tolerance: appendix F.5"


@torch.inference_mode()
def assd(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    k: Annotated[int, Interval(ge=2, le=64), Counts("positions", small=3)] = 5,
    tolerance: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
) -> Iterator[Fill]:
    """Draft k tokens per loop independently given the known ones, then verify them left to right against their joint
    distribution.

    k          tokens drafted per loop; 2 cannot be faster than one at a time (two passes, two tokens)
    tolerance  epsilon, added to every acceptance probability. 0 is exact

    The first draft is final at once, because its draft distribution is its distribution (Lemma 1); only the drafts
    after it are verified. A row with one token left needs no verification (line 9). So no row needs more passes than it
    has tokens (Theorem 1).
    """
    tokens = start.tokens
    order = start.order
    n_prompt = start.begin
    n = start.begin
    N = start.tokens.shape[1]
    slot = torch.arange(k, device=tokens.device)
    while (max_remaining := int((start.end - n).max())) > 0:
        remaining = start.end - n
        slots = next_ranks(start, n, k)
        index = n[:, None] * N + slots.rank
        # In the paper p is the distribution of a draft and q the target's; elsewhere in this package it is the reverse.
        p = model.probs(tokens, order, n_prompt, slots.asked, n[:, None].expand_as(slots.rank))
        draft = sample_token(p, noise.exponential("draft", index, model.vocab))
        new = draft
        n_kept = remaining.clamp(max=1)
        if max_remaining > 1:
            line = write(tokens, slots.position, draft, slots.open)
            q = model.probs(line, order, n_prompt, slots.asked[:, 1:], slots.rank[:, 1:])
            u, e = noise.uniform("accept", index[:, 1:]), noise.exponential("sample", index[:, 1:], model.vocab)
            point = torch.zeros_like(slots.open[:, 1:])
            rest = verify(q, p[:, 1:], draft[:, 1:], point, u, e, tolerance)
            new = torch.cat([draft[:, :1], rest.tokens], 1)
            n_kept = (1 + rest.kept).minimum(remaining)
        final = slot < n_kept[:, None]
        accepted = (final & (new == draft))[:, 1:].sum(1)  # a correction hardly ever equals the draft
        yield Fill(slots.position, new, final, remaining.clamp(max=2), accepted_drafts=accepted)
        tokens = write(tokens, slots.position, new, final)
        n = n + n_kept
