"""Parallel Jacobi decoding: rows of the image side by side, each with a window of drafts that are verified."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import one_hot

from parity_decoders.counts import Counts
from parity_decoders.grid import find_grid
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import FINAL, TokenModel, TreePass
from parity_decoders.sequence_buffer import find_end, release_rows
from parity_decoders.steps import Step
from parity_decoders.verification import draw_correction, make_probs, probability, sample_token

CLAIM = "lossless"
ORIGIN = "account"
EXACT_WITH = {"commit": "raster"}
COUPLED_WITH = {"commit": "raster"}
SOURCE = "Liao et al. 2026 (PJD, arXiv 2606.05703), as others describe it and as released; commit: raster: this project"


class Slots(NamedTuple):
    """The slots of a pass: the windows of the rows of the image, one after the other, [B, S] each."""

    row: Tensor  # of the image
    offset: Tensor  # how far a slot is after the first of its window
    position: Tensor  # L for a slot that is not used
    target: Tensor  # the position that its token is written to; L for a slot that is only fed
    n: Tensor  # [B, R] slots of each row
    top: Tensor  # [B, 1] the topmost row that is not done


class ImageState:
    """What is done of the images of a batch, and the drafts of what is not. Position L stands for none."""

    probs: Tensor  # [B, L + 1, V] the distribution that a position's draft was drawn from; not before the first pass

    def __init__(self, model: TokenModel, start: Tensor, is_raster: bool):
        """Start after the prompts' last tokens `start` [B]. is_raster: see `pjd`, commit."""
        B, forced = len(start), model.forced.cpu()
        self.model, self.is_raster, self.end = model, is_raster, find_end(forced)
        self.grid = find_grid(model)
        listed = self.grid.list_rows("pjd", self.end)
        # a row ends after the last position that the grammar leaves open
        rows = [forced[row.first : row.end] for row in listed]
        size = [find_end(row) if bool((row < 0).any()) else len(row) for row in rows]
        self.size, self.first, self.width = (  # [R]; the first position of each row, its positions in all
            torch.tensor(x, device=start.device) for x in (size, [row.first for row in listed], [*map(len, rows)])
        )
        self.is_top = torch.tensor([row.is_top for row in listed], device=start.device)
        self.rows = torch.arange(len(rows), device=start.device)
        self.image = torch.arange(B, device=start.device)[:, None]
        self.forced = torch.cat([model.forced, model.forced.new_full((1,), -1)])
        # position i is in column i + 1
        self.line = torch.cat([start[:, None], self.forced.clamp(min=0).expand(B, -1)], 1)
        self.has_draft = torch.zeros_like(self.line[:, 1:], dtype=torch.bool)
        self.count = torch.zeros_like(self.rows.expand(B, -1))  # tokens done in each row
        self.frontier = torch.zeros_like(self.image)  # tokens that are final in raster order
        self.is_unread = torch.zeros_like(self.image, dtype=torch.bool)  # whether the row above ended in the last pass

    def lay_out_windows(self, window: int, ahead: int) -> Slots | None:
        """Lay out the windows of the topmost row that is not done, and of the open rows below it, from their last token
        done to drafts as far as the row above is done. None if all is done. window, ahead: see `pjd`."""
        count, size, L = self.count, self.size, self.model.length
        top = (count >= size).sum(1, keepdim=True).clamp(max=len(size) - 1)
        begin, stop = self.first + count, (self.first + size)[top]
        if self.is_raster:
            begin, stop = begin.scatter(1, top, self.frontier), torch.full_like(top, self.end)
        n_top = (stop - begin.gather(1, top)).clamp(max=window)
        above = count.roll(1, 1)
        is_open = (self.rows > top) & ~self.is_top & (above >= ahead) & (above > count) & (window > 1)
        n_below = (above - count + 1).minimum(size - count).clamp(max=window)
        n_open = torch.where(is_open, n_below, 0).scatter(1, top, n_top)
        # the last tokens of a row that ended are only fed; if the next row has none, its window feeds the very last
        n_unread = self.width - size + (count.gather(1, top) > 0).long()
        n = torch.where((self.rows == top - 1) & self.is_unread, n_unread, n_open)
        n_slots, n_open_slots = torch.stack([n, n_open]).sum(2).amax(1).tolist()  # a GPU is read once a pass
        if not n_open_slots:
            return None
        end = n.cumsum(1)
        slot = torch.arange(n_slots, device=n.device).repeat(len(n), 1)
        row = torch.searchsorted(end, slot, right=True).clamp(max=len(size) - 1)
        offset = slot - (end - n).gather(1, row)
        position = torch.where(slot < end[:, -1:], begin.gather(1, row) + offset, L)
        # a lower row's window writes no tokens, keys and values where the topmost one, which may run on there, does
        overlaps = self.is_raster & (row > top) & (position < self.frontier + n_top)
        return Slots(row, offset, position, torch.where((row < top) | overlaps, L, position), n, top)

    def make_drafts(self, slots: Slots, random: Tensor, e: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draft each slot: as the last pass left it, else a `random` token [B, S] or, by exponentials e [B, S, V], a
        draw from the distribution of the position above. Also returns which are random [B, S] bool."""
        position = slots.position
        is_random = ~self.has_draft.gather(1, position)
        draft = torch.where(is_random, random, self.line.gather(1, position + 1))
        if e is not None and hasattr(self, "probs"):
            width, first = self.grid.look_up(position)
            above = (position - width).clamp(min=0)
            copied = is_random & self.has_draft.gather(1, above) & (position - width >= first)
            copied &= self.forced[position] < 0
            probs, probs_above = (self.probs[self.image, i] for i in (position, above))
            self.probs[self.image, position] = probs = torch.where(copied[..., None], probs_above, probs)
            draft = torch.where(copied, sample_token(probs, e), draft)
            is_random &= ~copied
        draft = torch.where(self.forced[position] >= 0, self.forced[position], draft)
        self.line.scatter_(1, slots.target + 1, draft)
        return self.line.gather(1, position + 1), is_random

    def compute_probs(self, slots: Slots, draft: Tensor, is_random: Tensor) -> tuple[Tensor, Tensor, TreePass]:
        """Compute the distributions p [B, S, V] of all slots in one pass, in which the rows are branches of a tree,
        whose first nodes are tokens that are done. Also returns q, those of the drafts, and what `keep` takes."""
        row, offset, position, _, n, top = slots
        # a slot's distribution follows the token before it, for which, before a row's first, the last one done above
        # stands in
        stands_in = (row > top) & (position == self.first[row]) & (self.forced[position - 1] < 0)
        last_above = (self.first + self.count).gather(1, (row - 1).clamp(min=0))
        feed = self.line.gather(1, torch.where(stands_in, last_above, position))
        is_root = (offset < n.gather(1, row)) & ((offset == 0) | (row < top))
        parents = torch.where(is_root, FINAL, torch.arange(row.shape[1], device=row.device) - 1)
        evaluated = self.model.tree(feed, position - 1, parents)
        p = make_probs(evaluated.logits)
        if not hasattr(self, "probs"):
            self.probs = p.new_zeros(*self.has_draft.shape, p.shape[-1])
        q = torch.where(is_random[..., None], one_hot(draft, p.shape[-1]), self.probs[self.image, position])
        return p, q, evaluated

    def advance(
        self, slots: Slots, evaluated: TreePass, tokens: Tensor, probs: Tensor, final: Tensor, n_done: Tensor
    ) -> Step:
        """Write the tokens of a pass, let the model keep the final ones, and advance the rows. See `verify`."""
        row, offset, position, target, n, top = slots
        L = self.model.length
        self.line.scatter_(1, target + 1, tokens)
        self.probs[self.image, target] = probs
        self.has_draft.scatter_(1, target, True)
        self.has_draft[:, L] = False
        # a slot's node is the token before it
        keep = (row < top) & (position < L) | (offset < n_done.gather(1, row) + (row > top)) & (target < L)
        self.model.keep(evaluated, torch.where(keep, torch.arange(row.shape[1], device=row.device), -1))
        if self.is_raster:
            self.frontier = self.frontier + n_done.gather(1, top)
            count = self.count + n_done.masked_fill(self.rows <= top, 0)
            self.count = count.maximum((self.frontier - self.first).clamp(min=0)).minimum(self.size)
        else:
            self.count = self.count + n_done
            self.is_unread = self.count.gather(1, top) >= self.size[top]
        return Step(tokens, final.sum(1), torch.where(final, position, L), n.sum(1))


def verify(
    slots: Slots, draft: Tensor, p: Tensor, q: Tensor, e: Tensor, u: Tensor | None, reuse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Verify drafts [B, S] of distributions q by p [B, S, V], with uniforms u [B, S] as in `sjd`, else by whether they
    win the draws with exponentials e [B, S, V]. reuse: see `pjd`, rejected. Returns tokens [B, S], the distributions
    that they are from [B, S, V], which of them are final [B, S] bool, and how many tokens of each row are now done [B,
    R]."""
    row, offset, _, _, n, top = slots
    size = n.gather(1, row)  # of the slot's window
    is_top, was_fed = row == top, offset + 1 < size
    fresh = sample_token(p, e)
    accepted = fresh == draft if u is None else u * probability(q, draft) < probability(p, draft)
    accepted &= (offset < size) & (is_top | was_fed & (row > top))
    n_accepted = n.scatter_reduce(1, row, torch.where(accepted, size, offset), "amin")
    run = offset < n_accepted.gather(1, row)
    n_final = (n_accepted.gather(1, top) + 1).minimum(n.gather(1, top))  # of the topmost window, with its correction
    final, n_done = is_top & (offset < n_final), n_accepted.scatter(1, top, n_final)
    if u is None:
        return fresh, p, final, n_done
    correction = final & ~run
    fresh = torch.where(correction, draw_correction(p, q, e, correction.long().argmax(1, keepdim=True)), fresh)
    stays = run
    if reuse:
        likely = probability(p, draft) > probability(q, draft) / 2
        stays = run | likely & (offset > n_accepted.gather(1, row)) & (is_top | was_fed)
    probs = torch.where((stays & ~run)[..., None], q, p)
    return torch.where(stays, draft, fresh), probs, final | run, n_done


@torch.inference_mode()
def pjd(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 16,
    ahead: Annotated[int, Interval(ge=1, le=4096), Counts("lag", small=1, most="row")] = 4,
    commit: Literal["rows", "raster"] = "rows",
    rejected: Literal["redraw", "reuse"] = "redraw",
    init: Literal["random", "sample_above"] = "random",
) -> Iterator[Step]:
    """Start each row of the image once `ahead` tokens of the row above are done, and refine a window of drafts in every
    open row in each pass. A row's drafts see the tokens that are done, and no drafts of other rows.

    window    W, the most tokens of a row evaluated in a pass; no row gets further than the row above
    ahead     tokens of the row above that must be done
    commit    "rows": as described. Drafts are verified as in `sjd`, row by row, and those accepted are final; the
              topmost open row also corrects its first rejected draft. A token does not see the rest of the row above,
              which is what is lossy. "raster": only the window at the first open token makes tokens final, and it runs
              on into the next row; what lower rows accept stays a draft. Each position has one draw in all passes, so
              the tokens are those of `ar` under the same noise
    rejected  with "rows", the drafts after the first rejected one of a row. "redraw": they are drawn anew from p.
              "reuse": where p / q is above a half they stay, with the distribution they were drawn from, as in the
              released code
    init      drafts of slots new in a window: random tokens, or draws from the distribution predicted for the position
              above

    The first token of a row follows the last of the row above. If the grammar does not force that one, the last token
    done in the row above takes its place until it is done.
    """
    V, positions = model.vocab, torch.arange(model.length + 1, device=start.device)[None]
    exponentials = noise.exponential("sample", positions, V) if commit == "raster" else None
    image = ImageState(model, start, commit == "raster")
    n_numbers = len(image.rows) * (window + image.grid.find_widest())  # of a pass; no two passes share one
    step = 0
    while (slots := image.lay_out_windows(window, ahead)) is not None:
        number = (torch.arange(slots.row.shape[1], device=start.device) + step * n_numbers)[None]
        e = (
            noise.exponential("sample", number, V)
            if exponentials is None
            else exponentials[image.image, slots.position]
        )
        e_draft = None
        if init == "sample_above":
            e_draft = noise.exponential("draft race", number, V) if exponentials is None else e
        random = (noise.uniform("draft", number) * V).long().clamp(max=V - 1)
        draft, is_random = image.make_drafts(slots, random, e_draft)
        p, q, evaluated = image.compute_probs(slots, draft, is_random)
        u = noise.uniform("accept", number) if exponentials is None else None
        yield image.advance(slots, evaluated, *verify(slots, draft, p, q, e, u, rejected == "reuse"))
        if start.device.type == "cpu" and not getattr(model, "static", False):
            release_rows(model, (image.count >= image.size).all(1).numpy())
        step += 1
