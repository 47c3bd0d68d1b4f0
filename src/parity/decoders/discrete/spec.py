"""Speculative sampling: a small draft model proposes a few tokens one by one, the target verifies them in one pass."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import finish, race
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
NEEDS = "draft"
SOURCE = "Leviathan et al. 2023, Alg. 1"


@torch.inference_mode()
def spec(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    gamma: Annotated[int, Field(ge=1, le=64)] = 4,
) -> Iterator[Step]:
    """Each pass accepts the drafts that the target agrees with, and adds one token of its own: the correction of the first rejected draft, or,
    where all were accepted, a draw from the law behind the last.

    gamma  tokens drafted per pass, each a pass of the draft model, which is no pass of the target

    The model must have a `draft`: a token model over the same vocabulary, positions and grammar, under the same sampling settings.
    """
    draft_model = getattr(model, "draft", None)
    if draft_model is None:
        raise ValueError("spec: the model has no draft model; allowed: one whose attribute `draft` is a token model")
    L, V, device = model.length, model.vocab, start.device
    slot, pair = torch.arange(gamma + 1, device=device)[None], torch.tensor([[-1, 0]], device=device)
    line = torch.zeros(
        len(start), L + gamma + 2, dtype=start.dtype, device=device
    )  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    at = torch.zeros_like(start)  # [B] first open position
    for step in count():
        first = int(at.min())
        if first >= L:
            return
        W = min(gamma + 1, L - first)  # the window shrinks at the end of the image
        where, index = at[:, None] + slot[:, :W], step * (gamma + 1) + slot[:, :W]
        # Two tokens: where all drafts of the last pass were accepted, the draft model has not read the last of them.
        known = (at[:, None] + pair).clamp(min=0)
        feed, fed, drafts, laws = line.gather(1, known), known - 1, [], []
        for k in range(W - 1):
            q = draft_model.logits(feed, fed)[:, -1].softmax(-1)
            token = race(q, noise.exponential("draft", index[:, k], V))
            feed, fed = token[:, None], where[:, k : k + 1].clamp(max=L - 1)
            drafts.append(token)
            laws.append(q)
        last = line.gather(1, at[:, None])
        p = model.logits(torch.stack([last[:, 0], *drafts], 1), (where - 1).clamp(max=L - 1)).softmax(-1)
        draft, q = torch.stack([*drafts, last[:, 0]], 1), torch.stack([*laws, p[:, -1]], 1)
        bonus = (slot[:, :W] == gamma) | (
            where >= L - 1
        )  # no draft stands there: the last slot, and the picture's last position
        u, exponential = noise.uniform("accept", index), noise.exponential("sample", index, V)
        own_p, own_q = (law.gather(-1, draft[..., None])[..., 0] for law in (p, q))
        tokens, kept = finish(p, q, draft, bonus, (u * own_q < own_p) & ~bonus, race(p, exponential), exponential)
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)
        line.scatter_(1, where + 1, tokens)
        at = at + kept
