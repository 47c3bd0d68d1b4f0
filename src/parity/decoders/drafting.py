"""Where drafts for slots that are new in a window come from (Teng et al. 2024, sec. 4.2): the one core of every Jacobi-type decoder."""

from typing import NamedTuple

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.verification import race
from parity.models.discrete.protocol import TokenModel


class Drafts(NamedTuple):
    tokens: Tensor  # [B, W]
    q: Tensor | None  # [B, W, V] the law each was drawn from, where it is not a point; None if all are points
    point: Tensor  # [B, W] bool: a given token (random, repeated, or forced by the grammar)


class Board:
    """What a run has written and predicted so far, and the drafts that follow from it.

    line [B, L + window + 1]: the token at position i is line[:, i + 1], the prompt's last at 0.
    laws [B, L + window, V]: the law last predicted at each position; kept only for an `init` that samples from it.
    """

    def __init__(self, model: TokenModel, start: Tensor, noise: Noise, window: int, init: str):
        self.model, self.noise, self.window, self.init = model, noise, window, init
        self.rows, self.slot = (
            torch.arange(len(start), device=start.device)[:, None],
            torch.arange(window, device=start.device)[None],
        )
        self.line = torch.zeros(len(start), model.length + window + 1, dtype=start.dtype, device=start.device)
        self.line[:, 0] = start
        self.laws: Tensor | None = None

    def write(self, where: Tensor, tokens: Tensor, p: Tensor) -> None:
        """A pass's tokens [B, W] and laws [B, W, V] at positions `where` [B, W]."""
        self.line.scatter_(1, where + 1, tokens)
        if self.init.startswith("sample"):
            if self.laws is None:
                self.laws = p.new_zeros(len(p), self.model.length + self.window, p.shape[-1])
            self.laws[self.rows, where] = p

    def drafts(self, step: int, where: Tensor, end: Tensor, exponential: Tensor | None = None) -> Drafts:
        """For slots at `where` [B, W] of pass `step`; positions before `end` [B] have been written.

        A draw from a neighbour's law is a race of `exponential` [B, W, V], for decoders that share it with their verification; else of
        numbers of its own. Where the neighbour does not exist the draft is random, where the grammar forces a token it is that token.
        """
        V, noise, index = self.model.vocab, self.noise, step * self.window + self.slot
        forced = self.model.forced[where.clamp(max=self.model.length - 1)]
        token, q = (noise.uniform("draft", index) * V).long().clamp(max=V - 1), None
        point = torch.ones_like(where, dtype=torch.bool)
        if self.init != "random":
            back = self.model.width if self.init.endswith("above") else 1
            source = where - back * (-((end[:, None] - 1 - where) // back)).clamp(
                min=1
            )  # the nearest such position written
            exists = (source >= 0) & (source < end[:, None])
            source = source.clamp(min=0)
            if self.init.startswith("repeat"):
                token = torch.where(exists, self.line.gather(1, source + 1), token)
            elif self.laws is not None:
                q = self.laws[self.rows, source]
                drawn = race(q, noise.exponential("draft", index, V) if exponential is None else exponential)
                token, point = torch.where(exists, drawn, token), ~exists
        return Drafts(torch.where(forced >= 0, forced, token), q, point | (forced >= 0))
