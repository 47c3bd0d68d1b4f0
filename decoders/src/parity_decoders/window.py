"""The window of a Jacobi-type decoder (Teng et al. 2024, sec. 4): W positions, a draft in each, all verified in one
pass of the target.

    slots = Window(model, start, noise, window, init)
    while slots.open():
        draft, q, point = slots.drafts()
        p = slots.compute_law(draft)
        tokens, kept = verify(p, q, draft, point, ...)
        yield slots.advance(tokens, kept, p)
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_races
from parity_decoders.steps import Step
from parity_decoders.verification import make_law, race, shift_window

AHEAD = 16  # passes whose uniforms are drawn in one call, because few numbers cost as much as a call


class Drafts(NamedTuple):
    tokens: Tensor  # [B, W]
    q: Tensor  # [B, W, V] the law each was drawn from; undefined where `point` is true
    point: Tensor  # [B, W] bool: a point mass (a random, repeated or forced token)


class Window:
    """The slots of a pass, and what is carried from pass to pass.

    positions [B, W]  position of each slot
    index [B, W]      numbers of their draws: no two passes of a row share one
    line              the tokens written so far
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
        stores: bool = True,
    ):
        """Set up an empty window. size: the most slots; init, refine: see `sjd`; warm: see `sjd_coupled`.

        shared  a position has one race in all passes, which its drafts are drawn by too; else each pass draws anew
        shrink  no slots past the end of the rows; a tree, whose shape is fixed, has them, and so has a model that is
                `static`
        stores  whether drafts keep the laws that they were drawn from
        """
        self.model = model
        self.noise = noise
        self.size = size
        self.init = init
        self.refine = refine
        self.warm = warm
        self.shared = shared
        self.stores = stores
        self.line = SequenceBuffer(model, start, size)
        self.shrink = shrink and not self.line.static
        self.by_position = make_races(self.line, noise)
        self.rows = torch.arange(len(start), device=start.device)[:, None]
        self.slot = torch.arange(size, device=start.device)
        self.point = torch.ones_like(start, dtype=torch.bool)[:, None]  # [B, 1] random drafts are point masses
        self.nothing = torch.zeros((), dtype=noise.dtype, device=start.device)
        # end [B]: positions before it have been written; kept [B]: tokens of the last pass that are final
        self.end = self.kept = self.line.frontier
        # how far `init` looks back; drafts are made from no position before the frontier less this
        self.back = model.width if init.endswith("above") else 1
        # [B, back + size, V] laws last predicted, if `init` samples; position i is in place i modulo back + size
        self.laws: Tensor | None = None
        self.carried: set[str] = set()  # attributes that a pass has set, see `_carry`
        # for each use the uniforms [B, AHEAD * size] of AHEAD passes, and the number of the first of these passes
        self.drawn: dict[str, tuple[Tensor, int]] = {}
        self.tokens: Tensor | None = None  # [B, W] tokens of the last pass; stored [B, W, V]: their laws
        self.stored: Tensor | None = None

    def has_open_slots(self) -> bool:
        """Move the window to the first open position of every row, with new `positions` and `index`; return whether any
        row has an open position. Rows that the model's queue has replaced begin without earlier passes."""
        remaining = self.line.count_remaining()
        self._begin_pass(remaining)
        return remaining > 0

    def repeat(self, run_pass: Callable[[], Step], alike: bool = True) -> Passes:
        """Make the passes of a decoder of `run_pass`, which drafts, computes laws, verifies and advances this window;
        alike: see `Passes`."""

        def run(remaining: int) -> Step:
            self._begin_pass(remaining)
            return run_pass()

        return Passes(self.line, run, alike)

    def _begin_pass(self, remaining: int) -> None:
        """Move the window to the first open position of every row, at most one of which has `remaining` of them."""
        line = self.line
        if line.step and line.newest == 0:
            self._forget_rows(line.age[:, 0] == 0)
        W = min(self.size, remaining) if self.shrink else self.size
        self.positions = line.next_positions(W)
        self.index = self.slot[:W] + line.age * self.size
        self.exponential: Tensor | None = None

    def _forget_rows(self, rows: Tensor) -> None:
        """Forget the earlier passes of the given rows [B] bool."""
        assert self.tokens is not None
        self._carry("kept", self.kept.masked_fill(rows, self.tokens.shape[1]))
        self._carry("end", self.end.masked_fill(rows, 0))
        self.drawn.clear()

    def _carry(self, name: str, value: Tensor) -> None:
        """Carry a value to the next pass as attribute `name`; in place if the model is `static`, so that a captured
        pass finds it."""
        if self.line.static and name in self.carried:
            getattr(self, name).copy_(value)
        else:
            setattr(self, name, value.clone() if self.line.static else value)
            self.carried.add(name)

    def draw_uniforms(self, use: str) -> Tensor:
        """Draw U(0, 1) [B, W] for a use of `Noise`, one for each slot of the pass, numbered by `index`."""
        if self.line.static:
            return self.noise.uniform(use, self.index)
        step = self.line.step
        size = self.size
        if use not in self.drawn or step == self.drawn[use][1] + AHEAD:
            numbers = self.line.age * size + torch.arange(AHEAD * size, device=self.slot.device)
            self.drawn[use] = self.noise.uniform(use, numbers), step
        uniform, first = self.drawn[use]
        return uniform[:, (step - first) * size :][:, : self.positions.shape[1]]

    def draw_races(self) -> Tensor:
        """Draw the unit exponentials [B, W, V] by which the pass's tokens are drawn; the same in one pass, however
        often asked."""
        if self.exponential is None:
            if self.shared:
                self.exponential = self.by_position.take_next(self.positions.shape[1])
            else:
                self.exponential = self.noise.exponential("sample", self.index, self.model.vocab)
        return self.exponential

    def compute_law(self, draft: Tensor) -> Tensor:
        """Compute p [B, W, V], the target's law of each slot given the drafts [B, W] before it, in one pass."""
        feed = torch.cat([self.line.read_last_token(), draft[:, :-1]], 1)
        return make_law(self.model.logits(feed, (self.positions - 1).clamp(max=self.model.length - 1)))

    def make_drafts(self) -> Drafts:
        """Make the drafts of a pass: the tokens that the last pass drew after its correction, and fresh drafts in new
        slots or, without `refine`, in all."""
        if self.tokens is None:
            return self.make_fresh_drafts()
        W = self.positions.shape[1]
        previous = [self.tokens] if self.stored is None else [self.tokens, self.stored]
        fresh = self.make_fresh_drafts()
        ((carried, *q_of), new) = shift_window(self.kept, W, *previous)
        if not self.refine:
            new = torch.ones_like(new)
        q = q_of[0] if q_of else fresh.q
        q = q if self.laws is None else torch.where(new[..., None], fresh.q, q)
        drafts = Drafts(torch.where(new, fresh.tokens, carried), q, new & fresh.point)
        return self._warm_drafts(drafts) if self.warm and self.line.newest <= 1 and self.stored is not None else drafts

    def _warm_drafts(self, drafts: Drafts) -> Drafts:
        """Replace the drafts of rows in their second pass by draws from the law at the frontier, because the laws after
        it were computed on random tokens."""
        assert self.stored is not None
        second = self.line.age == 1
        frontier = (self.kept - 1).clamp(min=0, max=self.stored.shape[1] - 1)
        q = self.stored.gather(1, frontier[:, None, None].expand(-1, 1, self.model.vocab)).expand_as(drafts.q)
        drawn = self._force_tokens(race(q, self._draw_draft_races()), q, torch.zeros_like(drafts.point))
        tokens, point = (torch.where(second, drawn[i], drafts[i]) for i in (0, 2))
        return Drafts(tokens, torch.where(second[..., None], q, drafts.q), point)

    def make_fresh_drafts(self) -> Drafts:
        """Make drafts by `init` (sec. 4.2): random tokens; or the token of the nearest position written to the left or
        above, or a draw from the law predicted there. Where that position does not exist: random. Where the grammar
        forces a token: that one."""
        V = self.model.vocab
        tokens = (self.draw_uniforms("draft") * V).long().clamp(max=V - 1)
        point = self.point.expand_as(self.positions)
        q = self.nothing.expand(*self.positions.shape, V)
        if self.init != "random":
            source, exists = self._find_sources()
            if self.init.startswith("repeat"):
                tokens = torch.where(exists, self.line.tokens.gather(1, source + 1), tokens)
            elif self.laws is not None:
                q = self.laws[self.rows, source % self.laws.shape[1]]
                tokens = torch.where(exists, race(q, self._draw_draft_races()), tokens)
                point = ~exists
        return self._force_tokens(tokens, q, point)

    def _find_sources(self) -> tuple[Tensor, Tensor]:
        """Find the positions [B, W] that `init` copies from, in steps of 1 to the left or of a row upwards, and [B, W]
        bool whether each has been written."""
        back = self.back
        source = self.positions - back * (-((self.end[:, None] - 1 - self.positions) // back)).clamp(min=1)
        return source.clamp(min=0), (source >= 0) & (source < self.end[:, None])

    def predict_laws(self) -> tuple[Tensor, Tensor]:
        """Return the laws [B, W, V] that an `init` "sample_..." draws from, and [B, W] bool which slots have one."""
        assert self.laws is not None
        source, exists = self._find_sources()
        if self.line.grammar:
            exists &= self.model.forced[self.positions.clamp(max=self.model.length - 1)] < 0
        return self.laws[self.rows, source % self.laws.shape[1]], exists

    def _force_tokens(self, tokens: Tensor, q: Tensor, point: Tensor) -> Drafts:
        """Make drafts of tokens [B, W] drawn from q, in which the tokens that the grammar forces are put in as point
        masses."""
        if not self.line.grammar:
            return Drafts(tokens, q, point)
        forced = self.model.forced[self.positions.clamp(max=self.model.length - 1)]
        return Drafts(torch.where(forced >= 0, forced, tokens), q, point | (forced >= 0))

    def _draw_draft_races(self) -> Tensor:
        """Draw the unit exponentials [B, W, V] by which drafts are drawn: those of the tokens if `shared`, else
        others."""
        return self.draw_races() if self.shared else self.noise.exponential("draft race", self.index, self.model.vocab)

    def advance(self, tokens: Tensor, n_kept: Tensor, p: Tensor | None = None, stored: Tensor | None = None) -> Step:
        """Write the pass's tokens [B, W], of which the first n_kept [B] are final, move the window after them, and
        return the step.

        p [B, W, V]: their laws, needed if the next pass verifies against them; stored: the laws to remember instead of
        p.
        """
        if p is not None and self.init.startswith("sample"):
            if self.laws is None:
                self.laws = p.new_zeros(len(p), self.back + self.size, p.shape[-1])
            self.laws[self.rows, self.positions % self.laws.shape[1]] = p
        self._carry("tokens", tokens)
        if (stored := p if stored is None else stored) is not None and self.stores:
            self._carry("stored", stored)
        step = self.line.advance(tokens, n_kept.clamp(max=tokens.shape[1]))
        self._carry("kept", step.kept)
        self._carry("end", step.positions + tokens.shape[1] if self.refine else self.line.frontier)
        return step
