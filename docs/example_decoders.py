"""Two decoders in a file of their own, for docs/start/decoder.md: one is right, one is subtly wrong.

    parity certify decoder docs/example_decoders.py:lookahead
    parity certify decoder docs/example_decoders.py:hasty

Both draft two tokens at a time uniformly at random, and verify them in one pass of the target. `hasty` differs in one
expression: it replaces a rejected draft by a draw from p, where the law must be what p has more of than q,
max(0, p - q).
"""

from collections.abc import Iterator

import torch
from parity_decoders.steps import Step
from parity_decoders.verification import race, residual
from torch import Tensor


def _two_at_a_time(model, start: Tensor, noise, correct: bool) -> Iterator[Step]:
    L, V = model.length, model.vocab
    at, last, step = torch.zeros_like(start), start, 0
    while int(at.min()) < L:
        slot = torch.arange(2, device=start.device)
        index, where = 2 * step + slot[None], at[:, None] + slot
        forced = model.forced[where.clamp(max=L - 1)]
        draft = torch.where(forced >= 0, forced, (noise.uniform("draft", index) * V).long().clamp(max=V - 1))
        p = model.logits(torch.stack([last, draft[:, 0]], 1), (where - 1).clamp(max=L - 1)).softmax(-1)
        q = torch.where(forced[..., None] >= 0, torch.nn.functional.one_hot(draft, V), 1 / V)

        u = noise.uniform("accept", index)
        accepted = u * q.gather(-1, draft[..., None])[..., 0] < p.gather(-1, draft[..., None])[..., 0]
        other = race(residual(p, q) if correct else p, noise.exponential("sample", index, V))
        tokens = torch.where(accepted, draft, other)
        kept = torch.where(accepted[:, 0], 2, 1).minimum(L - at)
        yield Step(tokens, kept, at)

        last = torch.where(kept > 0, tokens.gather(1, (kept - 1).clamp(min=0)[:, None])[:, 0], last)
        at, step = at + kept, step + 1


def lookahead(model, start: Tensor, *, noise) -> Iterator[Step]:
    """Correct: accepted with probability min(1, p/q), else the residual."""
    return _two_at_a_time(model, start, noise, correct=True)


def hasty(model, start: Tensor, *, noise) -> Iterator[Step]:
    """Subtly wrong: a rejected token is replaced from p."""
    return _two_at_a_time(model, start, noise, correct=False)
