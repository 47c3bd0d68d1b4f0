"""Multi-trajectory Jacobi decoding: Gumbel-coupled Jacobi that also evaluates what its drafts are likeliest to be replaced by."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.drafting import Board
from parity.models.protocol import TokenModel
from parity.noise import Noise
from parity.steps import Step
from parity.trees import ancestors, followed
from parity.verification import slide

CLAIM = "lossless"
COUPLED_WITH: dict = {}  # whatever its options
SOURCE = "this project: docs/mtj.md. Without branches it is GS of Speculative Coupled Decoding"


def alternatives(certain: Tensor, doubtful: Tensor, width: int, tail: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every branch that is considered: log-probability [B, A], parent, offset and rank [A] of its nodes, a parent before its children.

    certain, doubtful [B, W, K + 1] log-probabilities of the K + 1 likeliest tokens of each slot where its context is as it was in the last
    pass, and where it has changed. A branch leaves the chain at offset i for the token of rank k and goes on with the chain's tokens, or
    at i + 1 for another rank k2 and then goes on. In it the slots to the right of and below a new token are doubtful. Parents below W are
    chain nodes (node i precedes offset i), others W plus their place in this list.
    """
    W, K = certain.shape[1], certain.shape[2] - 1
    device, T = certain.device, tail
    holds = torch.nn.functional.pad(certain[:, :, 0].cumsum(1), (1, 0))[:, :-1]  # [B, W] log-probability that the chain reaches a slot
    i, t = torch.arange(W - 1, device=device)[:, None], torch.arange(T, device=device)
    at = (i + t).clamp(max=W - 1)  # [D, T]
    price = torch.where((t == 1) | (t == width), doubtful[:, at, 0], certain[:, at, 0])
    price[..., 0] = 0
    once = holds[:, :-1, None, None] + certain[:, :-1, 1:, None] + price.cumsum(-1)[:, :, None]  # [B, D, K, T]
    price = torch.where(
        (t == 1) | (t == width) | (t == width + 1), doubtful[:, (at + 1).clamp(max=W - 1), 0], certain[:, (at + 1).clamp(max=W - 1), 0]
    )
    price[..., 0] = 0
    twice = once[..., 0, None, None] + doubtful[:, 1:, None, 1:, None] + price.cumsum(-1)[:, :, None, None]  # [B, D, K, K2, T]

    number = W + torch.arange(once[0].numel(), device=device).view(once.shape[1:])
    parent_once = torch.cat([i[:, None].expand(-1, K, 1), number[..., :-1]], -1)
    number_twice = W + number.numel() + torch.arange(twice[0].numel(), device=device).view(twice.shape[1:])
    parent_twice = torch.cat([number[..., 0, None, None].expand(-1, -1, K, 1), number_twice[..., :-1]], -1)
    rank = torch.arange(1, K + 1, device=device)[:, None] * (t == 0)  # [K, T]: the branch's own token, then the chain's
    offsets = torch.cat([(i + t)[:, None].expand(-1, K, -1).flatten(), (i + 1 + t)[:, None, None].expand(-1, K, K, -1).flatten()])
    ranks = torch.cat([rank.expand(W - 1, -1, -1).flatten(), rank.expand(W - 1, K, -1, -1).flatten()])
    # Strictly falling along a branch, so that the likeliest nodes hold their parents; no branch goes past the window.
    fall = 1e-3 * torch.cat([t.expand(once.shape[1:]).flatten(), (t + 1).expand(twice.shape[1:]).flatten()])
    score = torch.cat([once.flatten(1), twice.flatten(1)], 1) - fall
    return score.masked_fill(offsets > W - 2, -1e9), torch.cat([parent_once.flatten(), parent_twice.flatten()]), offsets, ranks


@torch.inference_mode()
def mtj(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 32,
    branches: Annotated[int, Field(ge=0, le=4096)] = 32,
    tail: Annotated[int, Field(ge=1, le=1024)] = 8,
    ranks: Annotated[int, Field(ge=1, le=64)] = 3,
    sure: Annotated[float, Field(gt=0, le=100)] = 0.3,
    unsure: Annotated[float, Field(gt=0, le=100)] = 1.0,
    warm: bool = True,
) -> Iterator[Step]:
    """Every position has one race in all passes, so the result equals `ar` under the same noise whatever is evaluated.

    window    the chain: each slot's winner under the law of the last pass
    branches  nodes evaluated beside the chain: those likeliest to be reached
    tail      longest branch; ranks: alternatives considered per slot
    sure      temperature of a slot's race if its left and upper neighbours stayed in the last pass; unsure: if one changed
    warm      after the first pass draft every slot from the frontier's law: the other laws were computed on noise
    """
    B, L, V, W = len(start), model.length, model.vocab, window
    K, device, codes = min(ranks, V - 1), start.device, getattr(model, "codebook", None)
    slot, rows = torch.arange(W, device=device)[None], torch.arange(B, device=device)[:, None]
    at = torch.zeros_like(start)  # [B] first open position
    board = Board(model, start, noise, W, "sample_above")
    moved = torch.zeros(B, L + W + model.width + 1, dtype=torch.bool, device=device)  # at position + width: changed in the last pass

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
            score, parent, places, rank = alternatives(top.values.clamp(min=-20), doubt.clamp(min=-20), model.width, tail)
            chosen = score.topk(extra).indices  # [B, extra], likeliest first
            number = torch.zeros(B, W + score.shape[1], dtype=torch.int64, device=device)
            number[:, :W] = slot
            number.scatter_(1, W + chosen, W + torch.arange(extra, device=device).expand(B, -1))
            tokens = torch.cat([tokens, top.indices[rows, places[chosen], rank[chosen]]], 1)
            parents = torch.cat([parents, number.gather(1, parent[chosen])], 1)
            offset = torch.cat([offset, places[chosen] + 1], 1)  # of the slot whose law a node gives
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
