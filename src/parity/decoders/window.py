"""The window of a Jacobi-type decoder (Teng et al. 2024, sec. 4): W positions, a draft in each, all verified in one
pass of the target.

    slots = Window(model, start, noise, window, init)
    while slots.open():
        draft, q, point = slots.drafts()
        p = slots.compute_law(draft)
        tokens, kept = verify(p, q, draft, point, ...)
        yield slots.advance(tokens, kept, p)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.sequence_buffer import SequenceBuffer, make_races
from parity.decoders.steps import Step
from parity.decoders.verification import race, shift_window
from parity.models.discrete.protocol import TokenModel

AHEAD = 16  # passes whose uniforms are drawn at once: where they are few, calls are what they cost


class Drafts(NamedTuple):
    tokens: Tensor  # [B, W]
    q: Tensor  # [B, W, V] the law each was drawn from; what stands there for a point means nothing
    point: Tensor  # [B, W] bool: a given token (random, repeated, or forced by the grammar)


class Window:
    """The slots of the pass at hand, and what the passes before left for them.

    positions [B, W]  theirs
    index [B, W]  numbers of their draws: no two passes of a row share one
    line          what is written
    """

    def __init__(
        self,
        model: TokenModel,
        start: Tensor,
        noise: Noise,
        size: int,
        init: str = "random",
        *,
        refine: bool = True,
        warm: bool = False,
        shared: bool = False,
        shrink: bool = True,
    ):
        """size, the most slots; init, refine: see `sjd`; warm: see `sjd_coupled`.

        shared  a position has one race in all passes, which its drafts are drawn by too; else each pass draws anew
        shrink  no slots past the end of the rows; a tree, whose shape is fixed, has them, and so has a model that is
                `static`
        """
        self.model, self.noise, self.size, self.init = model, noise, size, init
        self.refine, self.warm, self.shared = refine, warm, shared
        self.shrink = shrink and not getattr(model, "static", False)
        self.line = SequenceBuffer(model, start, size)
        self.by_position = make_races(self.line, noise)
        self.rows = torch.arange(len(start), device=start.device)[:, None]
        self.slot = torch.arange(size, device=start.device)
        self.point = torch.ones_like(start, dtype=torch.bool)[:, None]  # what random drafts are, and a law of none
        self.nothing = torch.zeros((), dtype=noise.dtype, device=start.device)
        self.end = self.kept = (
            self.line.frontier
        )  # [B] positions before it have been written; tokens of the last pass kept
        self.laws: Tensor | None = None  # [B, L + size, V] last predicted at each position, for an `init` that samples
        # [B, AHEAD * size] uniforms of a use, of some passes, and the first of these
        self.drawn: dict[str, tuple[Tensor, int]] = {}
        self.tokens: Tensor | None = None  # [B, W], and below the law [B, W, V] they came from: of the last pass
        self.stored: Tensor | None = None

    def has_open_slots(self) -> bool:
        """Whether a row has an open position; the window then stands at the first of every row."""
        remaining, line = self.line.count_remaining(), self.line
        if line.step and line.newest == 0:
            self._forget_rows(line.age[:, 0] == 0)
        W = min(self.size, remaining) if self.shrink else self.size
        self.positions = line.next_positions(W)
        self.index = self.slot[:W] + line.age * self.size
        self.exponential: Tensor | None = None
        return remaining > 0

    def _forget_rows(self, rows: Tensor) -> None:
        """Nothing of the passes before is left in `rows` [B] bool."""
        assert self.tokens is not None
        self.kept, self.end = self.kept.masked_fill(rows, self.tokens.shape[1]), self.end.masked_fill(rows, 0)
        self.drawn.clear()

    def draw_uniforms(self, use: str) -> Tensor:
        """U(0, 1) [B, W], one a slot of the pass: those of `index`."""
        step, size = self.line.step, self.size
        if use not in self.drawn or step == self.drawn[use][1] + AHEAD:
            numbers = self.line.age * size + torch.arange(AHEAD * size, device=self.slot.device)
            self.drawn[use] = self.noise.uniform(use, numbers), step
        uniform, first = self.drawn[use]
        return uniform[:, (step - first) * size :][:, : self.positions.shape[1]]

    def draw_races(self) -> Tensor:
        """Unit exponentials [B, W, V] that the pass's tokens are drawn by."""
        if self.exponential is None:
            if self.shared:
                self.exponential = self.by_position.take_next(self.positions.shape[1])
            else:
                self.exponential = self.noise.exponential("sample", self.index, self.model.vocab)
        return self.exponential

    def compute_law(self, draft: Tensor) -> Tensor:
        """p [B, W, V]: the target's law of each slot, given the drafts before it."""
        feed = torch.cat([self.line.read_last_token(), draft[:, :-1]], 1)
        return self.model.logits(feed, (self.positions - 1).clamp(max=self.model.length - 1)).softmax(-1)

    def make_drafts(self) -> Drafts:
        """What the last pass drew behind its correction, and fresh drafts in the slots that are new."""
        if self.tokens is None:
            return self.make_fresh_drafts()
        W = self.positions.shape[1]
        previous = [self.tokens] if self.stored is None else [self.tokens, self.stored]
        fresh, ((carried, *q_of), new) = self.make_fresh_drafts(), shift_window(self.kept, W, *previous)
        if not self.refine:
            new = torch.ones_like(new)
        q = q_of[0] if q_of else fresh.q
        q = q if self.laws is None else torch.where(new[..., None], fresh.q, q)
        drafts = Drafts(torch.where(new, fresh.tokens, carried), q, new & fresh.point)
        return self._warm_drafts(drafts) if self.warm and self.line.newest <= 1 and self.stored is not None else drafts

    def _warm_drafts(self, drafts: Drafts) -> Drafts:
        """In a row's second pass drafts of the frontier's law: the laws behind it were of noise."""
        assert self.stored is not None
        second, frontier = self.line.age == 1, (self.kept - 1).clamp(min=0, max=self.stored.shape[1] - 1)
        q = self.stored.gather(1, frontier[:, None, None].expand(-1, 1, self.model.vocab)).expand_as(drafts.q)
        drawn = self._force_tokens(race(q, self._draw_draft_races()), q, torch.zeros_like(drafts.point))
        tokens, point = (torch.where(second, drawn[i], drafts[i]) for i in (0, 2))
        return Drafts(tokens, torch.where(second[..., None], q, drafts.q), point)

    def make_fresh_drafts(self) -> Drafts:
        """Drafts that `init` makes (sec. 4.2): random tokens; or the token of the nearest position written to the left
        or above, or a draw from the law predicted there. Random where there is none, and where the grammar forces a
        token that one."""
        V = self.model.vocab
        tokens = (self.draw_uniforms("draft") * V).long().clamp(max=V - 1)
        point, q = self.point.expand_as(self.positions), self.nothing.expand(*self.positions.shape, V)
        if self.init != "random":
            source, exists = self._find_sources()
            if self.init.startswith("repeat"):
                tokens = torch.where(exists, self.line.tokens.gather(1, source + 1), tokens)
            elif self.laws is not None:
                q = self.laws[self.rows, source]
                tokens, point = torch.where(exists, race(q, self._draw_draft_races()), tokens), ~exists
        return self._force_tokens(tokens, q, point)

    def _find_sources(self) -> tuple[Tensor, Tensor]:
        """Where `init` copies from, [B, W], and whether that is written."""
        back = self.model.width if self.init.endswith("above") else 1
        source = self.positions - back * (-((self.end[:, None] - 1 - self.positions) // back)).clamp(min=1)
        return source.clamp(min=0), (source >= 0) & (source < self.end[:, None])

    def predict_laws(self) -> tuple[Tensor, Tensor]:
        """The laws [B, W, V] that an `init` which samples draws from, and which slots have one, bool [B, W]."""
        assert self.laws is not None
        source, exists = self._find_sources()
        if self.line.grammar:
            exists &= self.model.forced[self.positions.clamp(max=self.model.length - 1)] < 0
        return self.laws[self.rows, source], exists

    def _force_tokens(self, tokens: Tensor, q: Tensor, point: Tensor) -> Drafts:
        """The tokens, but the forced ones where the grammar leaves no choice."""
        if not self.line.grammar:
            return Drafts(tokens, q, point)
        forced = self.model.forced[self.positions.clamp(max=self.model.length - 1)]
        return Drafts(torch.where(forced >= 0, forced, tokens), q, point | (forced >= 0))

    def _draw_draft_races(self) -> Tensor:
        return self.draw_races() if self.shared else self.noise.exponential("draft", self.index, self.model.vocab)

    def advance(self, tokens: Tensor, n_kept: Tensor, p: Tensor | None = None, stored: Tensor | None = None) -> Step:
        """The pass's tokens [B, W], the first n_kept [B] of which are final, and the window moved on behind them.

        p [B, W, V]: their laws, needed where drafts are verified against theirs; stored: what is remembered instead.
        """
        if p is not None and self.init.startswith("sample"):
            if self.laws is None:
                self.laws = p.new_zeros(len(p), self.model.length + self.size, p.shape[-1])
            self.laws[self.rows, self.positions] = p
        self.tokens, self.stored = tokens, p if stored is None else stored
        step = self.line.advance(tokens, n_kept.clamp(max=tokens.shape[1]))
        self.kept, self.end = step.kept, (step.positions + tokens.shape[1] if self.refine else self.line.frontier)
        return step
