"""Speculative sampling: a small draft model proposes a few tokens one by one, the target verifies them in one pass."""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.steps import Step
from parity_decoders.verification import accept_block, finish, make_probs, probability, sample_token

CLAIM = "lossless"
REFILLS = True
NEEDS = "draft"
SOURCE = "Leviathan et al. 2023, Alg. 1; verify: block is Sun et al. 2024 (2403.10444), Alg. 2"


def propose(
    model: TokenModel, line: SequenceBuffer, positions: Tensor, noise: Noise, index: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Draft tokens for all positions [B, W] but the last with the draft model, one by one. Returns W - 1 drafts [B],
    and the distributions [B, V] they were drawn from. index [B, W] numbers the draws."""
    # The model reads two tokens at first: if all drafts of the last pass were accepted, it has not read the last.
    read = (line.frontier[:, None] + torch.arange(-1, 1, device=positions.device)).clamp(min=0)
    feed = line.tokens.gather(1, read)
    feed_positions = read - 1
    drafts = []
    probs = []
    e = noise.exponential("draft", index[:, :-1], model.vocab)
    for k in range(positions.shape[1] - 1):
        probs.append(make_probs(model.logits(feed, feed_positions)[:, -1]))
        drafts.append(sample_token(probs[-1], e[:, k]))
        feed = drafts[-1][:, None]
        feed_positions = positions[:, k : k + 1].clamp(max=model.length - 1)
    return drafts, probs


def accept_tokens(p: Tensor, q: Tensor, draft: Tensor, bonus: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Decide which drafts [B, W] are accepted, each by itself (Leviathan et al. 2023, Alg. 1). Also returns
    distributions [B, W, V], whose surplus over q corrects the first rejected draft."""
    return (u * probability(q, draft) < probability(p, draft)) & ~bonus, p


VERIFY = {"token": accept_tokens, "block": accept_block}


@torch.inference_mode()
def spec(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    gamma: Annotated[int, Interval(ge=1, le=64), Counts("positions")] = 4,
    verify: Literal["token", "block"] = "token",
) -> Iterator[Step]:
    """Accept the drafts that the target agrees with in each pass, and add one token of the target: the correction of
    the first rejected draft or, if all were accepted, a draw from the distribution after the last.

    gamma   tokens drafted per pass, each by a pass of the draft model
    verify  "token": the first rejected draft ends the run. "block": the longest run that a joint test accepts

    The model must have a `draft`: a token model over the same vocabulary, positions and grammar, under the same
    sampling settings.
    """
    draft_model = getattr(model, "draft", None)
    if draft_model is None:
        raise DecodingError("spec: the model has no draft model; allowed: one whose attribute `draft` is a token model")
    V = model.vocab
    line = SequenceBuffer(model, start, gamma + 1)
    slot = torch.arange(gamma + 1, device=start.device)

    def run_pass() -> Step:
        positions = line.next_positions(gamma + 1)
        index = line.age * (gamma + 1) + slot
        drafts, probs = propose(draft_model, line, positions, noise, index)
        last_token = line.read_last_token()[:, 0]
        p = make_probs(model.logits(torch.stack([last_token, *drafts], 1), (positions - 1).clamp(max=model.length - 1)))
        # the last slot has no draft, so token 0 fills it; nor need one be drafted at or after the last drawn position
        draft, q = torch.stack([*drafts, torch.zeros_like(last_token)], 1), torch.stack([*probs, p[:, -1]], 1)
        bonus = (slot == gamma) | (positions >= line.end - 1)
        u, e = noise.uniform("accept", index), noise.exponential("sample", index, V)
        accepted, scaled = VERIFY[verify](p, q, draft, bonus, u)
        return line.advance(*finish(scaled, q, draft, bonus, accepted, sample_token(p, e), e))

    return Passes(line, run_pass)
