"""Speculative sampling: a small draft model proposes a few tokens one by one, the target verifies them in one pass."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.noise import Noise
from parity.decoders.line import Line
from parity.decoders.steps import Step
from parity.decoders.verification import finish, probability, race
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
NEEDS = "draft"
SOURCE = "Leviathan et al. 2023, Alg. 1"


def propose(
    model: TokenModel, line: Line, where: Tensor, noise: Noise, index: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Drafts [B] for all positions `where` [B, W] but the last, and the laws [B, V] they were drawn from one by one."""
    # Two tokens at first: where all drafts of the last pass were accepted, the model has not read the last of them.
    read = (line.at[:, None] + torch.arange(-1, 1, device=where.device)).clamp(min=0)
    feed, positions, drafts, laws = line.tokens.gather(1, read), read - 1, [], []
    for k in range(where.shape[1] - 1):
        laws.append(model.logits(feed, positions)[:, -1].softmax(-1))
        drafts.append(race(laws[-1], noise.exponential("draft", index[:, k], model.vocab)))
        feed, positions = drafts[-1][:, None], where[:, k : k + 1].clamp(max=model.length - 1)
    return drafts, laws


@torch.inference_mode()
def spec(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    gamma: Annotated[int, Field(ge=1, le=64)] = 4,
) -> Iterator[Step]:
    """Each pass accepts the drafts that the target agrees with, and adds one token of its own: the correction of the
    first rejected draft, or, where all were accepted, a draw from the law behind the last.

    gamma  tokens drafted per pass, each a pass of the draft model, which is no pass of the target

    The model must have a `draft`: a token model over the same vocabulary, positions and grammar, under the same
    sampling settings.
    """
    draft_model = getattr(model, "draft", None)
    if draft_model is None:
        raise ParityError("spec: the model has no draft model; allowed: one whose attribute `draft` is a token model")
    V, line = model.vocab, Line(model, start, gamma + 1)
    static = getattr(model, "static", False)
    while W := min(gamma + 1, line.left() * (gamma + 1 if static else 1)):  # it shrinks at the end of the image
        where, index = line.ahead(W), line.step * (gamma + 1) + torch.arange(W, device=start.device)[None]
        drafts, laws = propose(draft_model, line, where, noise, index)
        last = line.last()[:, 0]
        p = model.logits(torch.stack([last, *drafts], 1), (where - 1).clamp(max=model.length - 1)).softmax(-1)
        draft, q = torch.stack([*drafts, last], 1), torch.stack([*laws, p[:, -1]], 1)
        # No draft stands in the last slot, nor at the image's last position where the window was not shrunk to it.
        bonus = (torch.arange(W, device=start.device) == gamma) | (where >= model.length - 1)
        u, e = noise.uniform("accept", index), noise.exponential("sample", index, V)
        accepted = (u * probability(q, draft) < probability(p, draft)) & ~bonus
        yield line.advance(*finish(p, q, draft, bonus, accepted, race(p, e), e))
