"""Two decoders in a file of their own, for docs/start/decoder.md: one is right, one is subtly wrong.

    parity certify decoder docs/example_decoders.py:lookahead
    parity certify decoder docs/example_decoders.py:hasty

Both draft two tokens at a time uniformly at random, and verify them in one pass of the target. `hasty` differs in one
expression: it replaces a rejected draft by a draw from p, where the distribution must be what p has more of than q,
max(0, p - q).
"""

from collections.abc import Iterator

import torch
from parity_decoders.steps import Step
from parity_decoders.verification import residual, sample_token
from torch import Tensor

CLAIM = "lossless"


def _draft_two(model, start: Tensor, noise, correct: bool) -> Iterator[Step]:
    L, V = model.length, model.vocab
    position = torch.zeros_like(start)  # of the first open position [B]
    token = start  # the last final one [B]
    step = 0
    while int(position.min()) < L:
        slot = torch.arange(2, device=start.device)
        index = 2 * step + slot[None]
        positions = position[:, None] + slot
        forced = model.forced[positions.clamp(max=L - 1)]
        draft = torch.where(forced >= 0, forced, (noise.uniform("draft", index) * V).long().clamp(max=V - 1))
        p = model.logits(torch.stack([token, draft[:, 0]], 1), (positions - 1).clamp(max=L - 1)).softmax(-1)
        q = torch.where(forced[..., None] >= 0, torch.nn.functional.one_hot(draft, V), 1 / V)

        u = noise.uniform("accept", index)
        accepted = u * q.gather(-1, draft[..., None])[..., 0] < p.gather(-1, draft[..., None])[..., 0]
        correction = sample_token(residual(p, q) if correct else p, noise.exponential("sample", index, V))
        tokens = torch.where(accepted, draft, correction)
        n_kept = torch.where(accepted[:, 0], 2, 1).minimum(L - position)
        yield Step(tokens, n_kept, position)

        token = torch.where(n_kept > 0, tokens.gather(1, (n_kept - 1).clamp(min=0)[:, None])[:, 0], token)
        position = position + n_kept
        step += 1


def lookahead(model, start: Tensor, *, noise) -> Iterator[Step]:
    """Accept a draft with probability min(1, p/q), else draw from the residual: correct."""
    return _draft_two(model, start, noise, correct=True)


def hasty(model, start: Tensor, *, noise) -> Iterator[Step]:
    """Replace a rejected draft by a draw from p: subtly wrong."""
    return _draft_two(model, start, noise, correct=False)
