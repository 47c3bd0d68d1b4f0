"""Multi-trajectory Jacobi decoding: Gumbel-coupled Jacobi that also evaluates what its drafts are likeliest to be replaced by."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from parity.base.noise import Noise
from parity.decoders.drafting import Board
from parity.decoders.steps import Step
from parity.decoders.verification import slide
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.trees import ancestors, followed

CLAIM = "lossless"
COUPLED_WITH: dict = {}  # whatever its options
SOURCE = "this project: docs/mtj.md. Without branches it is GS of Speculative Coupled Decoding"


class Branches(NamedTuple):
    parents: (
        Tensor  # [B, M] nodes they follow: below W the chain's (node i precedes slot i), from W on those listed here
    )
    slots: Tensor  # [B, M] where they stand in the window
    ranks: Tensor  # [B, M] which of their slot's likeliest tokens they hold


def grow(certain: Tensor, doubtful: Tensor, width: int, count: int, rounds: int) -> Branches:
    """The `count` nodes beside the chain that are likeliest to be reached, best first up to `rounds` deep.

    certain, doubtful [B, W, K + 1]: log-probabilities of each slot's K + 1 likeliest tokens, the chain's first, where the slot's context is as it
    was in the last pass and where it has changed. On a branch the slots to the right of and below a replaced token are doubtful.
    """
    B, W, K, device = len(certain), certain.shape[1], certain.shape[2] - 1, certain.device
    rows = torch.arange(B, device=device)[:, None]
    holds = pad(certain[:, :, 0].cumsum(1), (1, 0))[
        :, : W - 1, None
    ]  # log-probability that the chain is right before a slot
    score = (holds + certain[:, : W - 1, 1:]).flatten(1)
    slots = torch.arange(W - 1, device=device).repeat_interleave(K).repeat(B, 1)
    # What may be taken: [B, n] each. `replaced` is a branch's history, a bit for each token, the last one lowest.
    pool = [slots, slots, torch.arange(1, K + 1, device=device).repeat(B, W - 1), torch.zeros_like(slots)]
    taken: list[list[Tensor]] = []
    done = 0
    for r in range(rounds):
        m = min(count * (r + 1) // rounds - done, score.shape[1])
        best = score.topk(m)
        parents, at, ranks, replaced = (x.gather(1, best.indices) for x in pool)
        taken.append([parents, at, ranks])
        score = score.scatter(1, best.indices, -torch.inf)
        replaced = (replaced << 1 | (ranks > 0).long()) & (1 << 62) - 1
        after = (at + 1).clamp(max=W - 1)
        changed = (replaced & 1 | replaced >> min(width - 1, 62) & 1).bool()
        price = torch.where(changed[..., None], doubtful[rows, after], certain[rows, after])
        price = (best.values[..., None] + price).masked_fill(
            (at >= W - 2)[..., None], -torch.inf
        )  # no branch goes past the window
        score = torch.cat([score, price.flatten(1)], 1)
        number = W + done + torch.arange(m, device=device).expand(B, -1)
        every = torch.arange(K + 1, device=device).repeat(B, m)
        new = [
            number.repeat_interleave(K + 1, 1),
            after.repeat_interleave(K + 1, 1),
            every,
            replaced.repeat_interleave(K + 1, 1),
        ]
        pool = [torch.cat(pair, 1) for pair in zip(pool, new, strict=True)]
        done += m
    return Branches(*(torch.cat(x, 1) for x in zip(*taken, strict=True)))


@torch.inference_mode()
def mtj(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 32,
    branches: Annotated[int, Field(ge=0, le=4096)] = 32,
    depth: Annotated[int, Field(ge=1, le=64)] = 8,
    ranks: Annotated[int, Field(ge=1, le=64)] = 3,
    sure: Annotated[float, Field(gt=0, le=100)] = 0.3,
    unsure: Annotated[float, Field(gt=0, le=100)] = 1.0,
    warm: bool = True,
) -> Iterator[Step]:
    """Every position has one race in all passes, so the result equals `ar` under the same noise whatever is evaluated.

    window    the chain: each slot's winner under the law of the last pass
    branches  nodes evaluated beside the chain: those likeliest to be reached
    depth     of the longest branch; ranks: alternatives considered per slot
    sure      temperature of a slot's race if its left and upper neighbours stayed in the last pass; unsure: if one changed
    warm      after the first pass draft every slot from the frontier's law: the other laws were computed on noise
    """
    B, L, V, W = len(start), model.length, model.vocab, window
    K, device, codes = min(ranks, V - 1), start.device, getattr(model, "codebook", None)
    slot, rows = torch.arange(W, device=device)[None], torch.arange(B, device=device)[:, None]
    at = torch.zeros_like(start)  # [B] first open position
    board = Board(model, start, noise, W, "sample_above")
    moved = torch.zeros(
        B, L + W + model.width + 1, dtype=torch.bool, device=device
    )  # at position + width: changed in the last pass

    def win(ratio: Tensor, where: Tensor) -> Tensor:
        forced = model.forced[where.clamp(max=L - 1)]
        return torch.where(forced >= 0, forced, ratio.argmax(-1))

    e = noise.exponential("sample", slot.expand(B, -1), V)
    ratio = 1 / e  # [B, W, V] what each slot's race is decided by: the law over the exponentials

    def unlike(tokens: Tensor, other: Tensor) -> Tensor:
        if codes is None:
            return (tokens != other).to(e.dtype)
        return (codes[tokens] - codes[other]).norm(dim=-1)

    for step in count():
        if int(at.min()) >= L:
            return
        where = at[:, None] + slot
        draft = win(ratio, where)
        tokens, parents, offset = (
            torch.cat([board.line.gather(1, at[:, None]), draft[:, :-1]], 1),
            slot.expand(B, -1) - 1,
            slot.expand(B, -1),
        )
        extra = min(branches, (W - 1) * K) if step else 0
        if extra > 0:
            left, upper = (moved.gather(1, at[:, None] + slot + model.width - back) for back in (1, model.width))
            log = ratio.log()
            top = torch.where((left | upper)[..., None], log / unsure, log / sure).log_softmax(-1).topk(K + 1)
            doubt = (log / unsure).log_softmax(-1).gather(-1, top.indices)
            branch = grow(top.values.clamp(min=-20), doubt.clamp(min=-20), model.width, extra, depth)
            tokens = torch.cat([tokens, top.indices[rows, branch.slots, branch.ranks]], 1)
            parents, offset = (
                torch.cat([parents, branch.parents], 1),
                torch.cat([offset, branch.slots + 1], 1),
            )  # of the slot a node gives
        positions = at[:, None] - 1 + offset
        p = model.tree(tokens, positions, parents).softmax(-1)
        ratios = p / e[rows, offset]
        drawn = win(ratios, positions + 1)
        above = ancestors(parents)
        path = followed(tokens, parents, drawn, above)  # [B, S] final and evaluated
        last = torch.where(path, offset, -1).argmax(1)  # [B] the deepest of them: what is drawn there is final too
        # A slot's law: on the path its node's; past it that of the likeliest node behind the draft that looks most like the token drawn
        # there; else of the chain.
        S = tokens.shape[1]
        far = torch.where(parents == last[:, None], unlike(tokens, drawn.gather(1, last[:, None])), torch.inf)
        near = far.argmin(1)[:, None, None].expand(-1, S, 1)
        behind = above.gather(2, near)[..., 0] & far.isfinite().any(1, keepdim=True)
        order = torch.where(behind | path, torch.arange(S, device=device), S)
        giver = torch.full((B, W), S, device=device).scatter_reduce(1, offset, order, "amin")
        giver = torch.where(giver == S, slot, giver)
        found, ratio = drawn.gather(1, giver), ratios[rows, giver]
        kept = (offset.gather(1, last[:, None])[:, 0] + 1).minimum(L - at)
        model.keep(torch.where(path, torch.arange(S, device=device), -1))
        yield Step(found, kept, at, (positions < L - 1).sum(1))

        moved.zero_().scatter_(1, where + model.width, found != draft)
        board.write(where, found, p[rows, giver])
        frontier = p[rows[:, 0], last][:, None]
        end, at = at + W, at + kept
        ahead = at[:, None] + slot
        e = noise.exponential("sample", ahead, V)
        if warm and step == 0:
            ratio = frontier / e
        else:
            ratio, new = slide(kept, W, ratio)
            fresh = board.drafts(step + 1, ahead, end, e)
            guess = (frontier if fresh.q is None else torch.where(fresh.point[..., None], frontier, fresh.q)) / e
            ratio = torch.where(new[..., None], guess, ratio)
