"""Parallel Jacobi decoding: rows of the picture side by side, each with a window of drafts that are verified."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import one_hot

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import FINAL, TokenModel
from parity_decoders.sequence_buffer import find_end
from parity_decoders.steps import Step
from parity_decoders.verification import probability, race, residual

CLAIM = "lossless"
ORIGIN = "account"
EXACT_WITH = {"commit": "raster"}
COUPLED_WITH = {"commit": "raster"}
SOURCE = "Liao et al. 2026 (PJD, arXiv 2606.05703), as others describe it and as released; commit: raster: this project"


class Slots(NamedTuple):
    """The slots of a pass: the windows of the rows one after the other, [B, S] each."""

    row: Tensor  # of the picture
    offset: Tensor  # how far a slot is after the first of its window
    position: Tensor  # L for a slot that is not used


def split_rows(forced: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the first position [R] of each row of the picture, and its size [R]: its positions up to the last that
    the grammar leaves open, or all if it leaves none. forced [L], on the CPU: see TokenModel."""
    sizes = [find_end(row) if bool((row < 0).any()) else len(row) for row in forced.split(width)]
    return torch.arange(0, len(forced), width), torch.tensor(sizes)


def lay_out_windows(begin: Tensor, n: Tensor, n_slots: int, L: int) -> Slots:
    """Lay out a window for each row of the picture: n [B, R] slots, together at most n_slots, from the positions begin
    [B, R] on. L: positions."""
    end = n.cumsum(1)
    slot = torch.arange(n_slots, device=n.device).repeat(len(n), 1)
    row = torch.searchsorted(end, slot, right=True).clamp(max=n.shape[1] - 1)
    offset = slot - (end - n).gather(1, row)
    return Slots(row, offset, torch.where(slot < end[:, -1:], begin.gather(1, row) + offset, L))


def mark_leading(holds: Tensor, offset: Tensor) -> Tensor:
    """Mark the slots [B, S] bool whose `holds` [B, S] is true, as for all before them in their window. offset: see
    Slots."""
    misses = (~holds).long()
    first = torch.arange(holds.shape[1], device=holds.device) - offset
    up_to = misses.cumsum(1)
    return up_to == (up_to - misses).gather(1, first.clamp(min=0))


def choose_windows(count: Tensor, size: Tensor, window: int, ahead: int) -> Tensor:
    """Choose how many slots [B, R] each row below the topmost one gets: its last token done is fed, and drafts as far
    as the row above is done. For the other rows the result is arbitrary. count [B, R]: tokens done in each row, of size
    [R]; window, ahead: see `pjd`."""
    above = count.roll(1, 1)
    is_open = (above >= ahead) & (above > count) & (window > 1)
    return torch.where(is_open, (above - count + 1).minimum(size - count).clamp(max=window), 0)


def correct_draft(fresh: Tensor, slot: Tensor, p: Tensor, q: Tensor, e: Tensor) -> Tensor:
    """Replace the fresh token [B, S] in one slot [B] by a draw from the residual of p and q [B, S, V], by exponentials
    e."""
    rows = slot[:, None, None].expand(-1, -1, p.shape[-1])
    corrected = race(residual(p.gather(1, rows), q.gather(1, rows)), e.gather(1, rows))
    return fresh.scatter(1, slot[:, None], corrected)


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
              on into the next row; what lower rows accept stays a draft. Each position has one race in all passes, so
              the tokens are those of `ar` under the same noise
    rejected  with "rows", the drafts after the first rejected one of a row. "redraw": they are drawn anew from p.
              "reuse": where p / q is above a half they stay, with the law they were drawn from, as in the released code
    init      drafts of slots new in a window: random tokens, or draws from the law predicted for the position above

    The first token of a row follows the last of the row above. If the grammar does not force that one, the last token
    done in the row above takes its place until it is done.
    """
    L, V = model.length, model.vocab
    B = len(start)
    device = start.device
    forced_on_cpu = model.forced.cpu()
    end = find_end(forced_on_cpu)
    first, size = (x.to(device) for x in split_rows(forced_on_cpu[:end], model.width))
    rows = torch.arange(len(first), device=device)
    image = torch.arange(B, device=device)[:, None]
    raster = commit == "raster"
    races = noise.exponential("sample", torch.arange(L + 1, device=device)[None], V) if raster else None
    # position i is in column i + 1 of `line`; position L stands for none
    line = torch.cat([start[:, None], model.forced.clamp(min=0).expand(B, -1), start[:, None]], 1)
    forced = torch.cat([model.forced, model.forced.new_full((1,), -1)])
    has_draft = torch.zeros(B, L + 1, dtype=torch.bool, device=device)
    laws: Tensor | None = None  # [B, L + 1, V] the law that a position's draft was drawn from
    count = torch.zeros(B, len(first), dtype=torch.int64, device=device)  # tokens done in each row
    frontier = torch.zeros_like(image.expand(B, 1))  # tokens that are final in raster order
    unread = torch.zeros_like(frontier, dtype=torch.bool)  # whether the row above ended in the last pass
    step = 0
    while True:
        # rows to open, and windows: begin [B, R] the first position of each, n [B, R] its slots
        top = (count >= size).sum(1, keepdim=True).clamp(max=len(first) - 1)  # the topmost row that is not done
        end_of_done = first + count
        begin = end_of_done.scatter(1, top, frontier) if raster else end_of_done
        stop = torch.full_like(top, end) if raster else (first + size)[top]
        n_top = (stop - begin.gather(1, top)).clamp(max=window)
        n = choose_windows(count, size, window, ahead).masked_fill(rows <= top, 0)
        n = n.scatter(1, top, n_top)
        n_open = n
        # the last tokens of a row that ended are only fed; if the next row has none, its window feeds the very last
        n_unread = model.width - size + (count.gather(1, top) > 0).long()
        n = torch.where((rows == top - 1) & unread, n_unread, n)
        n_slots, n_open_slots = torch.stack([n, n_open]).sum(2).amax(1).tolist()  # a GPU is read once a pass
        if not n_open_slots:
            return
        row, offset, position = lay_out_windows(begin, n, n_slots, L)
        used, is_top = position < L, row == top
        was_fed = offset + 1 < n.gather(1, row)
        # a lower row's window writes no tokens, keys and values where the topmost one, which may run on there, does
        overlaps = raster & (row > top) & (position < frontier + n_top)
        target = torch.where((row < top) | overlaps, L, position)

        # drafts
        slot = torch.arange(position.shape[1], device=device)
        number = (slot + step * len(first) * (window + model.width))[None]  # no two passes share one
        e = noise.exponential("sample", number, V) if races is None else races[image, position]
        new = ~has_draft.gather(1, position)
        random = (noise.uniform("draft", number) * V).long().clamp(max=V - 1)
        draft = torch.where(new, random, line.gather(1, position + 1))
        if laws is not None and init == "sample_above":
            source = (position - model.width).clamp(min=0)
            copied = new & has_draft.gather(1, source) & (position >= model.width) & (forced[position] < 0)
            laws[image, position] = torch.where(copied[..., None], laws[image, source], laws[image, position])
            e_draft = e if raster else noise.exponential("draft race", number, V)
            draft = torch.where(copied, race(laws[image, position], e_draft), draft)
            new &= ~copied
        draft = torch.where(forced[position] >= 0, forced[position], draft)
        line.scatter_(1, target + 1, draft)
        draft = line.gather(1, position + 1)

        # one pass over all windows: the rows are branches of a tree, whose first nodes are tokens that are done
        # a slot's law follows the token before it, for which, before a row's first, the last one done above stands in
        stands_in = (row > top) & (position == first[row]) & (forced[position - 1] < 0)
        column = torch.where(stands_in, end_of_done.gather(1, (row - 1).clamp(min=0)), position)
        parents = torch.where(used & ((offset == 0) | (row < top)), FINAL, slot - 1)
        p = model.tree(line.gather(1, column), position - 1, parents).softmax(-1)
        laws = p.new_zeros(B, L + 1, V) if laws is None else laws
        q = torch.where(new[..., None], one_hot(draft, V), laws[image, position])

        # verification, row by row
        fresh = race(p, e)
        if raster:
            accepted = fresh == draft
        else:
            accepted = noise.uniform("accept", number) * probability(q, draft) < probability(p, draft)
        run = mark_leading(accepted & used & (is_top | was_fed & (row > top)), offset)
        n_accepted = torch.zeros_like(n).scatter_add(1, row, run.long())
        n_final = (n_accepted.gather(1, top) + 1).minimum(n_top)  # of the topmost window, with its correction
        final = is_top & (offset < n_final)
        stays = run
        if not raster:
            correction = final & ~run
            fresh = torch.where(correction, correct_draft(fresh, correction.long().argmax(1), p, q, e), fresh)
            final = final | run
            if rejected == "reuse":
                likely = probability(p, draft) > probability(q, draft) / 2
                stays = run | likely & (offset > n_accepted.gather(1, row)) & (is_top | was_fed)
        tokens = torch.where(stays, draft, fresh)
        line.scatter_(1, target + 1, tokens)
        laws[image, target] = torch.where((stays & ~run)[..., None], q, p)
        has_draft.scatter_(1, target, True)
        has_draft[:, L] = False

        # the rows advance
        was_final = (offset <= n_accepted.gather(1, row)) | (row < top)
        model.keep(torch.where(used & ~overlaps & was_final, slot, -1))
        if raster:
            frontier = frontier + n_final
            count = (count + n_accepted.masked_fill(rows <= top, 0)).maximum((frontier - first).clamp(min=0))
            count = count.minimum(size)
        else:
            count = count + n_accepted.scatter(1, top, n_final)
            unread = count.gather(1, top) >= size[top]
        step += 1
        yield Step(tokens, final.sum(1), torch.where(final, position, L), n.sum(1))
