"""Any-Subset Speculative Decoding: the model drafts for itself, and corrects itself by the joint density of one
pass."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import none, race, verify
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, ranks, write

CLAIM = "lossless"
SLOTS = True  # whether a rank is reached is decided by those before it, so tests may stratify by slot
EXACT_WITH = {"tolerance": 0.0}
SOURCE = "Guo & Ermon 2025, Algorithm 1; tolerance: appendix F.5"


def joint(
    model: AnySubsetModel, line: Tensor, start: Infilling, n: Tensor, k: int, ahead: bool
) -> tuple[Tensor, Tensor]:
    """Laws of a line [B, N] with k drafts from rank n [B] on, in one pass: [B, k - 1, V] of all drafts but the first,
    each given those before it; with `ahead`, also of the k ranks behind them, given all drafts."""
    here, there = ranks(start, n, k), ranks(start, n + k, k if ahead else 0)
    asked, seen = here.asked[:, 1:], here.rank[:, 1:]
    asked = torch.cat([asked, there.asked], 1)
    seen = torch.cat([seen, (n[:, None] + k).expand_as(there.rank)], 1)
    laws = model.laws(line, start.order, start.begin, asked, seen)
    return laws[:, : k - 1], laws[:, k - 1 :]


@torch.inference_mode()
def assd(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    k: Annotated[int, Field(ge=2, le=64)] = 5,
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ahead: bool = False,
) -> Iterator[Fill]:
    """Each loop drafts k tokens independently given what is known, then verifies them left to right against their joint
    law.

    k          tokens drafted per loop; 2 cannot be faster than one at a time (two passes, two tokens)
    tolerance  epsilon, added to every acceptance probability. 0 is exact
    ahead      the pass that verifies also computes the laws of the next k tokens behind the drafts, so a row whose
               drafts are all accepted needs no pass to draft. The tokens are the same

    The first draft is final at once, because its draft law is its law (Lemma 1); only the drafts behind it are
    verified. A row with one token left needs no verification (line 9). So no row needs more passes than it has tokens
    (Theorem 1).
    """
    tokens, order, begin, n, N = start.tokens, start.order, start.begin, start.begin, start.tokens.shape[1]
    slot, holds = torch.arange(k, device=tokens.device), torch.zeros_like(n, dtype=torch.bool)
    held = torch.zeros((), device=tokens.device)  # draft laws [B, k, V] of the rows that are `holds`
    while (most := int((start.end - n).max())) > 0:
        left, here = start.end - n, ranks(start, n, k)
        index = n[:, None] * N + here.rank
        # The paper's p is the law of a draft, its q the target's.
        p = held
        if not ahead or not none(~holds & (left > 0)):
            asked = torch.where(holds[:, None], order.shape[1], here.asked)
            p = model.laws(tokens, order, begin, asked, n[:, None].expand_as(here.rank))
            p = torch.where(holds[:, None, None], held, p) if ahead else p
        draft = race(p, noise.exponential("draft", index, model.vocab))
        new, kept, calls = draft, left.clamp(max=1), left.clamp(max=2) - holds.long()
        if most > 1:
            line = write(tokens, here.position, draft, here.open)
            q, held = joint(model, line, start, n, k, ahead)
            u, e = noise.uniform("accept", index[:, 1:]), noise.exponential("sample", index[:, 1:], model.vocab)
            point = torch.zeros_like(here.open[:, 1:])
            rest = verify(q, p[:, 1:], draft[:, 1:], point, u, e, tolerance)
            new, kept = torch.cat([draft[:, :1], rest.tokens], 1), (1 + rest.kept).minimum(left)
            holds = (new == draft).all(1) & (left > k) & ahead
        final = slot < kept[:, None]
        accepted = (final & (new == draft))[:, 1:].sum(1)  # what corrects a draft is another token
        yield Fill(here.position, new, final, calls, accepted_drafts=accepted)
        tokens, n = write(tokens, here.position, new, final), n + kept
