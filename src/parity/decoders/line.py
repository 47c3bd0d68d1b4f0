"""What a decoder has written so far: rows of one batch stand at different positions."""

import torch
from torch import Tensor

from parity.decoders.steps import Step
from parity.models.discrete.protocol import TokenModel


class Line:
    """The tokens of every row, final ones and drafts, and how far each row has come.

    tokens  [B, L + 1 + spare]: the token at position i is tokens[:, i + 1], the prompt's last (position -1) comes
            first; `spare` columns take what is drawn past the end
    at      [B] first open position; before: that of the last pass
    step    passes made
    grammar whether tokens are forced
    end     behind the last position whose token is drawn
    """

    def __init__(self, model: TokenModel, start: Tensor, spare: int):
        self.model, self.step = model, 0
        self.tokens = torch.zeros(len(start), model.length + 1 + spare, dtype=start.dtype, device=start.device)
        self.tokens[:, 0] = start
        self.at = self.before = torch.zeros_like(start)
        self.numbers = torch.arange(self.tokens.shape[1], device=start.device)
        self.end = model.length  # or where the grammar forces all that follows, which costs no pass
        self.grammar = getattr(model, "grammar", True)
        if self.grammar:
            self.end = 1 + int((model.forced < 0).nonzero().max())

    def left(self) -> int:
        """Open positions of the row that has the most, up to the last that is drawn; 0 when all are done."""
        return max(self.end - int(self.at.min()), 0)

    def last(self) -> Tensor:
        """[B, 1] the last final token."""
        return self.tokens.gather(1, self.at[:, None])

    def ahead(self, n: int) -> Tensor:
        """[B, n] the first n open positions, counted on past a row's end."""
        return self.at[:, None] + self.numbers[:n]

    def advance(self, tokens: Tensor, kept: Tensor, nodes: Tensor | None = None) -> Step:
        """Write a pass's tokens [B, W] from the first open position on; kept [B] of them are final, less those past the
        end."""
        kept = kept.minimum(self.model.length - self.at)
        self.tokens.scatter_(1, self.ahead(tokens.shape[1]) + 1, tokens)
        self.before, self.at, self.step = self.at, self.at + kept, self.step + 1
        return Step(tokens, kept, self.before, nodes)
