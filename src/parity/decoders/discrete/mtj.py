"""Multi-trajectory Jacobi decoding: Gumbel-coupled Jacobi that also evaluates what its drafts are likeliest to be
replaced by."""

from collections.abc import Callable, Iterator
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.trees import Tree
from parity.decoders.verification import largest, slide
from parity.decoders.window import Window
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
REFILLS = True
COUPLED_WITH: dict = {}  # whatever its options
Win = Callable[[Tensor, Tensor], Tensor]  # ratio [B, W, V] and positions [B, W] to the winners [B, W]
SOURCE = "this project, 2026: docs/explanation/jacobi.md. Without branches it is GS of Speculative Coupled Decoding"


def grow(
    ratio: Tensor, changed: Tensor, sure: float, unsure: float, K: int, width: int, count: int, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` nodes beside the chain that are likeliest to be reached, best first up to `rounds` deep: their
    tokens, parents (below W the chain's, node i precedes slot i; from W on those listed here) and slots, [B, M] each.

    ratio [B, W, V] decides the slots' races, of which the K + 1 likeliest tokens are looked at, the chain's first. A
    slot is doubtful if its left or upper neighbour was replaced: in the last pass (`changed` [B, W]), or on the branch.
    """
    (B, W, _), device, log = ratio.shape, ratio.device, ratio.log()
    rows, every = torch.arange(B, device=device)[:, None], torch.arange(K + 1, device=device)
    log_unsure = log / unsure
    top = torch.where(changed[..., None], log_unsure, log / sure).log_softmax(-1).topk(K + 1)
    certain = top.values.clamp(min=-20)
    doubtful = log_unsure.log_softmax(-1).gather(-1, top.indices).clamp(min=-20)
    holds = pad(certain[:, :, 0].cumsum(1), (1, 0))[:, : W - 1, None]  # log-probability of the chain before a slot
    score = (holds + certain[:, : W - 1, 1:]).flatten(1)
    prices = torch.stack([certain, doubtful])  # [2, B, W, K + 1]
    prices[:, :, W - 1] = -torch.inf  # no branch goes past the window
    slots = torch.arange(W - 1, device=device).repeat_interleave(K)
    # What may be taken, [B, 4, n]: parents, slots, ranks, and a branch's history, a bit a token, 1 where replaced.
    pool = torch.stack([slots, slots, every[1:].repeat(W - 1), torch.zeros_like(slots)]).expand(B, -1, -1)
    number, taken, done = torch.arange(W, W + count, device=device), [], 0
    for r in range(rounds):
        m = min(count * (r + 1) // rounds - done, score.shape[1])
        best = score.topk(m)
        chosen = pool.gather(2, best.indices[:, None].expand(-1, 4, -1))
        taken.append(chosen)
        if r + 1 == rounds:
            break
        _, at, rank, history = chosen.unbind(1)
        replaced = rank > 0
        history = (history << 1 | replaced) & (1 << 62) - 1
        moved = replaced | (history >> min(width - 1, 62) & 1)
        after = (at + 1).clamp(max=W - 1)
        price = best.values[..., None] + prices[moved, rows, after]
        score = torch.cat([score.scatter_(1, best.indices, -torch.inf), price.flatten(1)], 1)
        below = (number[done : done + m, None], after[..., None], every, history[..., None])
        grown = torch.stack([x.expand(B, m, K + 1) for x in below], 1).flatten(2)
        pool = torch.cat([pool, grown], 2)
        done += m
    parents, slots, ranks, _ = torch.cat(taken, 2).unbind(1)
    return top.indices[rows, slots, ranks], parents, slots


def slot_laws(slots: Window, law: Tensor, frontier: Tensor, warm: bool) -> Tensor:
    """q [B, W, V] of every slot: the law of the last pass, for a new slot that of the position above, else the
    frontier's [B, 1, V]. With `warm`, after the first pass, all slots take the frontier's law, since the others were
    computed on noise."""
    (carried,), new = slide(slots.kept, slots.size, law)
    above, there = slots.predicted()
    q, age = torch.where(new[..., None], torch.where(there[..., None], above, frontier), carried), slots.line.age
    q = torch.where(age[..., None] == 1, frontier, q) if warm and slots.line.newest <= 1 else q
    return q if slots.line.newest else torch.where(age[..., None] == 0, 1, q)


def givers(tree: Tree, path: Tensor, last: Tensor, unlike: Tensor, W: int) -> Tensor:
    """[B, W] the node that gives each slot its law: on the final path its own; past it that of the likeliest node
    behind the draft that is least `unlike` [B, S] the token drawn there (behind node `last` [B]); else the chain's."""
    S, device = unlike.shape[1], unlike.device
    far = torch.where(tree.follows == last[:, None], unlike, torch.inf)
    near = far.argmin(1)[:, None, None].expand(-1, S, 1)
    behind = tree.above.gather(2, near)[..., 0] & far.isfinite().any(1, keepdim=True)
    order = torch.where(behind | path, torch.arange(S, device=device), S)
    giver = torch.full((len(path), W), S, device=device).scatter_reduce(1, tree.offset, order, "amin")
    return torch.where(giver == S, torch.arange(W, device=device), giver)


class Redraft(Protocol):
    """What knows how the laws behind a correction move, without a pass of the target."""

    def hear(self, tree: Tree, path: Tensor, giver: Tensor) -> None:
        """A pass's tree, its nodes that are final [B, S] and those that give each slot its law [B, W]."""
        ...

    def ratio(self, slots: Window, ratio: Tensor, draft: Tensor, e: Tensor, win: "Win") -> Tensor:
        """What decides the slots' races [B, W, V], from what did under the last laws and from its winners [B, W]."""
        ...


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
    """Every position has one race in all passes, so the tokens are those of `ar` under the same noise, whatever is
    evaluated.

    window    the chain: each slot's winner under the law of the last pass
    branches  nodes evaluated beside the chain: those likeliest to be reached
    depth     nodes on the longest branch
    ranks     alternatives considered per slot
    sure      temperature of a slot's race if its left and upper neighbours stayed in the last pass
    unsure    the same if one of them changed
    warm      after the first pass, draft every slot from the law at the frontier, since the others were computed on
              noise
    """
    return trajectories(model, start, noise, window, branches, depth, ranks, sure, unsure, warm, None)


@torch.inference_mode()
def trajectories(
    model: TokenModel,
    start: Tensor,
    noise: Noise,
    window: int,
    branches: int,
    depth: int,
    ranks: int,
    sure: float,
    unsure: float,
    warm: bool,
    redraft: "Redraft | None",
) -> Iterator[Step]:
    """`mtj`; what moves the laws of the slots between two passes is `redraft`."""
    (L, V, W), codes = (model.length, model.vocab, window), getattr(model, "codebook", None)
    K, slot = min(ranks, V - 1), torch.arange(W, device=start.device).expand(len(start), -1)
    slots = Window(model, start, noise, W, "sample_above", shared=True, shrink=False)
    rows, line = slots.rows, slots.line
    # [B, ...] at position + width: whether its token changed in the last pass
    moved = torch.zeros(len(start), L + W + model.width + 1, dtype=torch.bool, device=start.device)
    law = frontier = torch.ones((), device=start.device)

    def win(ratio: Tensor, where: Tensor) -> Tensor:
        drawn = largest(ratio)
        if not line.grammar:
            return drawn
        forced = model.forced[where.clamp(max=L - 1)]
        return torch.where(forced >= 0, forced, drawn)

    def unlike(tokens: Tensor, other: Tensor) -> Tensor:
        return (tokens != other).to(noise.dtype) if codes is None else (codes[tokens] - codes[other]).norm(dim=-1)

    while slots.open():
        e = slots.races()
        # [B, W, V] what each slot's race is decided by
        ratio = (slot_laws(slots, law, frontier, warm) if line.step else law) / e
        draft = win(ratio, slots.where)
        if redraft is not None and line.step:
            ratio = redraft.ratio(slots, ratio, draft, e, win)
            draft = win(ratio, slots.where)
        behind, parents, offset = draft[:, :-1], slot - 1, slot
        count = min(branches, (W - 1) * K) if line.step else 0
        if count:
            left, upper = (moved.gather(1, slots.where + model.width - back) for back in (1, model.width))
            beside, under, where = grow(ratio, left | upper, sure, unsure, K, model.width, count, depth)
            behind, parents = torch.cat([behind, line.or_none(beside)], 1), torch.cat([parents, under], 1)
            offset = torch.cat([offset, where + 1], 1)  # of the slot a node gives the law of
        tree = Tree(line, behind, parents, offset)
        p = tree.law()
        drawn = win(p / e[rows, offset], tree.positions + 1)
        path = tree.followed(drawn)
        last = torch.where(path, offset, -1).argmax(1)  # [B] the deepest of the path: what is drawn there is final too
        at_last = last[:, None]
        giver = givers(tree, path, last, unlike(tree.tokens, drawn.gather(1, at_last)), W)
        if redraft is not None:
            redraft.hear(tree, path, giver)
        tokens, law, frontier = drawn.gather(1, giver), p[rows, giver], p[rows, at_last]
        moved.zero_().scatter_(1, slots.where + model.width, tokens != draft)
        model.keep(torch.where(path, torch.arange(path.shape[1], device=path.device), -1))
        yield slots.advance(tokens, offset.gather(1, at_last)[:, 0] + 1, law)._replace(nodes=tree.evaluated())
