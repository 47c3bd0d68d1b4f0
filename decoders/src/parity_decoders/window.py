"""The window of a Jacobi-type decoder (Teng et al. 2024, sec. 4): W positions, a draft in each, all verified in one
pass of the target.

    slots = Window(model, start, noise, window, init)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        p = slots.compute_probs(draft)
        tokens, n_kept = verify(p, q, draft, point, ...)
        return slots.advance(tokens, n_kept, p)

    return slots.repeat(run_pass)
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from parity_decoders.grid import Grid, find_grid
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials
from parity_decoders.steps import Step
from parity_decoders.verification import is_idle_on_cpu, make_probs, sample_token


class Drafts(NamedTuple):
    tokens: Tensor  # [B, W]
    q: Tensor  # [B, W, V] the distribution each was drawn from; undefined where `point` is true
    point: Tensor  # [B, W] bool: a point mass (a repeated or forced token; a random one unless its q is uniform)


class ProbsByPosition:
    """Distributions of the n positions written last: that of position i is in place i modulo n, and is replaced
    there."""

    def __init__(self, noise: Noise, n: int, V: int):
        """Make room for n distributions over V tokens of each row of the noise, in its dtype."""
        self.values = noise.keys.new_zeros(len(noise.keys), n, V, dtype=noise.dtype)
        self.rows = torch.arange(len(noise.keys), device=noise.keys.device)[:, None]

    def read(self, positions: Tensor) -> Tensor:
        """Read the distributions [B, S, V] of positions [B, S]."""
        return self.values[self.rows, positions % self.values.shape[1]]

    def write(self, positions: Tensor, probs: Tensor) -> None:
        """Write the probs [B, S, V] of positions [B, S]."""
        self.values[self.rows, positions % self.values.shape[1]] = probs.to(self.values.dtype)


class Window:
    """The slots of a pass, and the distributions that are carried from pass to pass.

    line              the tokens written so far
    positions [B, W]  position of each slot
    index [B, W]      numbers of their draws: no two passes of a row share one
    written [B, 1]    positions before it hold a token or a draft
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
        stores: Literal["p", "own", "none"] = "p",
        random: Literal["point", "uniform"] = "point",
    ):
        """Set up an empty window of `size` slots. init, refine, random: see `sjd`; warm: see `sjd_coupled`.

        shared  a position has one draw in all passes, which its drafts are drawn by too; else each pass draws anew
        stores  the distributions that drafts keep: the target's of the pass that drew them, "own" ones that the decoder
                gives, or none
        """
        self.model = model
        self.noise = noise
        self.size = size
        self.init = init
        self.has_uniform = random == "uniform"
        self.refine = refine
        self.warm = warm
        self.line = SequenceBuffer(model, start, size)
        self.by_position = make_exponentials(self.line, noise) if shared else None
        # how far `init` looks back; drafts are made from no position before the frontier less this
        self.grid = find_grid(model) if init.endswith("above") else Grid(1)
        self.back = self.grid.find_widest()
        makes_probs, V = init.startswith("sample") or stores == "p", model.vocab
        self.probs = ProbsByPosition(noise, self.back + size, V) if makes_probs else None  # the target's
        self.draft_probs = ProbsByPosition(noise, size, V) if stores == "own" else self.probs if stores == "p" else None

    def repeat(self, run_pass: Callable[[], Step]) -> Passes:
        """Make the passes of a decoder of `run_pass`, which drafts, computes distributions, verifies and advances this
        window."""

        def run() -> Step:
            self.begin_pass()
            return run_pass()

        return Passes(self.line, run)

    def begin_pass(self) -> None:
        """Move the window to the first open position of every row."""
        line = self.line
        self.positions = line.next_positions(self.size)
        self.index = line.numbers[: self.size] + line.age * self.size
        self.written = line.frontier[:, None]
        if self.refine:
            self.written = torch.where(line.age > 0, line.last_frontier[:, None] + self.size, 0)
        self.exponential: Tensor | None = None

    def draw_uniforms(self, use: str) -> Tensor:
        """Draw U(0, 1) [B, W] for a use of `Noise`, one for each slot of the pass, numbered by `index`."""
        return self.noise.uniform(use, self.index)

    def draw_exponentials(self) -> Tensor:
        """Draw the unit exponentials [B, W, V] by which the pass's tokens are drawn; the same in one pass, however
        often asked."""
        if self.exponential is None:
            if self.by_position is not None:
                self.exponential = self.by_position.take_next(self.size)
            else:
                self.exponential = self.noise.exponential("sample", self.index, self.model.vocab)
        return self.exponential

    def compute_probs(self, draft: Tensor) -> Tensor:
        """Compute p [B, W, V], the target's distribution of each slot given the drafts [B, W] before it, in one
        pass."""
        feed = torch.cat([self.line.read_last_token(), draft[:, :-1]], 1)
        return make_probs(self.model.logits(feed, (self.positions - 1).clamp(max=self.model.length - 1)))

    def find_new_slots(self) -> Tensor:
        """Find the slots [B, W] bool that hold no draft of the last pass."""
        return self.positions >= self.written

    def make_drafts(self) -> Drafts:
        """Make the drafts of a pass: the tokens that the last pass drew after its correction, and fresh drafts in new
        slots or, without `refine`, in all."""
        new = self.find_new_slots()
        tokens, q, point = self.make_fresh_drafts()
        if self.draft_probs is not None:
            carried = self.draft_probs.read(self.positions)
            has_probs = self.has_uniform or self.init.startswith("sample")
            q = torch.where(new[..., None], q, carried) if has_probs else carried
        tokens = torch.where(new, tokens, self.line.tokens.gather(1, self.positions + 1))
        drafts = Drafts(tokens, q, new & point)
        return self._warm_drafts(drafts) if self.warm else drafts

    def _warm_drafts(self, drafts: Drafts) -> Drafts:
        """Replace the drafts of rows in their second pass by draws from the distribution at the frontier, because the
        distributions after it were computed on random tokens."""
        second = self.line.age == 1
        if is_idle_on_cpu(second):
            return drafts
        assert self.draft_probs is not None
        q = self.draft_probs.read(self.line.frontier[:, None] - 1).expand_as(drafts.q)
        drawn = self._force_tokens(sample_token(q, self._draw_draft_exponentials()), q, torch.zeros_like(drafts.point))
        tokens, point = (torch.where(second, drawn[i], drafts[i]) for i in (0, 2))
        return Drafts(tokens, torch.where(second[..., None], q, drafts.q), point)

    def make_fresh_drafts(self) -> Drafts:
        """Make drafts by `init` (sec. 4.2): random tokens; or the token of the nearest position written to the left or
        above, or a draw from the distribution predicted there. Where that position does not exist: random. Where the
        grammar forces a token: that one."""
        V = self.model.vocab
        tokens = (self.draw_uniforms("draft") * V).long().clamp(max=V - 1)
        point = torch.full_like(tokens, not self.has_uniform, dtype=torch.bool)
        q = point.new_full((), self.has_uniform / V, dtype=self.noise.dtype).expand(*tokens.shape, V)
        if self.init != "random":
            source, exists = self.find_sources()
            if self.init.startswith("repeat"):
                tokens = torch.where(exists, self.line.tokens.gather(1, source + 1), tokens)
                point = point | exists
            else:
                assert self.probs is not None
                uniform, q = q, self.probs.read(source)
                tokens = torch.where(exists, sample_token(q, self._draw_draft_exponentials()), tokens)
                if self.has_uniform:
                    q = torch.where(exists[..., None], q, uniform)
                point = point & ~exists
        return self._force_tokens(tokens, q, point)

    def find_sources(self) -> tuple[Tensor, Tensor]:
        """Find the positions [B, W] that `init` copies from, in steps of 1 to the left or of a row upwards, and [B, W]
        bool whether each has been written."""
        width, start = self.grid.look_up(self.positions)
        source = self.positions - width * ((self.positions - self.written).clamp(min=0) // width + 1)
        return source.clamp(min=0), (source >= start) & (source < self.written)

    def read_forced(self) -> Tensor:
        """Read the tokens [B, W] that the grammar forces in the slots, -1 for none."""
        return self.model.forced[self.positions.clamp(max=self.model.length - 1)]

    def _force_tokens(self, tokens: Tensor, q: Tensor, point: Tensor) -> Drafts:
        """Make drafts of tokens [B, W] drawn from q, in which the tokens that the grammar forces are put in as point
        masses."""
        if not self.line.grammar:
            return Drafts(tokens, q, point)
        forced = self.read_forced()
        return Drafts(torch.where(forced >= 0, forced, tokens), q, point | (forced >= 0))

    def _draw_draft_exponentials(self) -> Tensor:
        """Draw the unit exponentials [B, W, V] by which drafts are drawn: those of the tokens if `shared`, else
        others."""
        if self.by_position is not None:
            return self.draw_exponentials()
        return self.noise.exponential("draft race", self.index, self.model.vocab)

    def advance(
        self,
        tokens: Tensor,
        n_kept: Tensor,
        p: Tensor | None = None,
        own: Tensor | None = None,
        nodes: Tensor | None = None,
    ) -> Step:
        """Write the pass's tokens [B, W], of which the first n_kept [B] are final, and the distributions that the
        window stores: p [B, W, V], the target's, and the drafts' `own` [B, W, V]. Return the step, with its `nodes`."""
        if self.probs is not None and p is not None:
            self.probs.write(self.positions, p)
        if own is not None and self.draft_probs is not None and self.draft_probs is not self.probs:
            self.draft_probs.write(self.positions, own)
        return self.line.advance(tokens, n_kept.clamp(max=self.size), nodes)
