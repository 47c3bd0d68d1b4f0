"""SJD-PAC: coupled Jacobi with a tree of candidates at the place of rejection and verification continued behind it."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.drafting import Board
from parity.decoders.steps import Step
from parity.decoders.verification import race, residual, slide, verify_siblings
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
SOURCE = "SJD-PAC, re-implemented from its description; warm: this project"


@torch.inference_mode()
def sjd_pac(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 50,
    branches: Annotated[int, Field(ge=1, le=16)] = 3,
    depth: Annotated[int, Field(ge=1, le=6)] = 2,
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    warm: bool = False,
) -> Iterator[Step]:
    """The first `depth` slots hold `branches` candidates each in every combination, the others one draft each: a tree, then a chain.

    branches  K, candidates a slot: the draft, then draws from its law without replacement. 1 is `sjd_coupled` with maximal coupling
    depth     D, slots with candidates; K + K^2 + ... + K^D nodes
    init      as in `sjd`
    warm      as in `sjd_coupled`
    """
    B, L, V, W = len(start), model.length, model.vocab, window
    K, D, device = min(branches, V), min(depth, window - 1), start.device
    slot, rows = torch.arange(W, device=device)[None], torch.arange(B, device=device)
    base = [
        1 + sum(K**i for i in range(1, d + 1)) for d in range(D + 1)
    ]  # first node of offset d; the chain follows from base[D] on
    parents = [torch.tensor([-1])] + [torch.arange(K ** (d + 1)) // K + (base[d - 1] if d else 0) for d in range(D)]
    if W - 1 > D:
        parents.append(torch.cat([torch.tensor([base[D - 1] if D else 0]), torch.arange(base[D], base[D] + W - 2 - D)]))
    parent = torch.cat(parents).to(device).expand(B, -1)
    offset = (
        torch.cat([torch.zeros(1), *(torch.full((K ** (d + 1),), d + 1) for d in range(D)), torch.arange(D + 1, W)])
        .long()
        .to(device)
    )
    main = torch.tensor(
        [0, *base[:D], *range(base[D], base[D] + W - 1 - D)], device=device
    )  # the chain's nodes: main[i] gives slot i's law
    at = torch.zeros_like(start)  # [B] first open position
    board = Board(model, start, noise, W, init)
    draft, q, point = board.drafts(0, at[:, None] + slot, at)
    for step in count():
        if int(at.min()) >= L:
            return
        where, index = at[:, None] + slot, step * W + slot
        if q is None:
            q = torch.zeros(B, W, V, dtype=noise.dtype, device=device)
        others = torch.where(point[:, :D, None], 0, q[:, :D].scatter(-1, draft[:, :D, None], 0))
        ranked = (others / noise.exponential("branch", index[:, :D], V)).topk(K - 1)
        candidates = torch.cat([draft[:, :D, None], ranked.indices], -1)  # [B, D, K]
        valid = torch.cat([torch.ones_like(candidates[..., :1], dtype=torch.bool), ranked.values > 0], -1)
        level = [candidates[:, d].repeat(1, K**d) for d in range(D)]
        tokens = torch.cat([board.line.gather(1, at[:, None]), *level, draft[:, D : W - 1]], 1)
        positions = at[:, None] - 1 + offset
        p = model.tree(tokens, positions, parent).softmax(-1)

        # the chain: every draft moves to its new law, as in sjd_coupled
        law, u, e = p[:, main], noise.uniform("accept", index), noise.exponential("sample", index, V)
        own_p, own_q = (x.gather(-1, draft[..., None])[..., 0] for x in (law, q))
        found = torch.where(point, race(law, e), torch.where(u * own_q < own_p, draft, race(residual(law, q), e)))
        # the tree: the candidates of each slot, from the node that the slots before it lead to
        node, n, path = torch.zeros_like(at), torch.zeros_like(at), [torch.zeros_like(at)]
        running = straight = torch.ones_like(at, dtype=torch.bool)
        for d in range(D):
            # negative: an index that no candidate was drawn with
            more = torch.cat(
                [
                    u[:, d : d + 1],
                    noise.uniform("branch", -1 - index[:, d : d + 1] * K - torch.arange(K - 1, device=device)),
                ],
                1,
            )
            token, rank = verify_siblings(
                p[rows, node], q[:, d], candidates[:, d], valid[:, d], point[:, d], more, e[:, d]
            )
            found[:, d] = torch.where(running, token, found[:, d])
            running, straight = running & (rank >= 0), straight & (rank <= 0)
            n += running
            node = torch.where(running, base[d] + (node - (base[d - 1] if d else 0)) * K + rank, node)
            path.append(torch.where(running, node, -1))
        if D < W:  # the slot behind the tree, where the path has left the chain
            off = running & ~straight
            leaf = p[rows, node]
            own = leaf.gather(-1, draft[:, D, None])[:, 0]
            moved = torch.where(u[:, D] * own_q[:, D] < own, draft[:, D], race(residual(leaf, q[:, D]), e[:, D]))
            found[:, D] = torch.where(off, torch.where(point[:, D], race(leaf, e[:, D]), moved), found[:, D])
        holds = (found[:, D:] == draft[:, D:]).long().cumprod(1) * (running & straight)[:, None]
        kept = (n + holds.sum(1) + 1).clamp(max=W)
        chain = torch.where(holds.bool() & (slot[:, D:] < W - 1), main[(slot[:, D:] + 1).clamp(max=W - 1)], -1)
        model.keep(torch.cat([torch.stack(path, 1), chain], 1))
        kept = kept.minimum(L - at)
        yield Step(found, kept, at, (positions < L - 1).sum(1))

        board.write(where, found, law)
        carried, new = slide(kept, W, found)
        frontier = law.gather(1, (kept - 1).clamp(min=0)[:, None, None].expand(-1, 1, V))
        end, at = at + W, at + kept
        ahead = at[:, None] + slot
        drafts = board.drafts(step + 1, ahead, end)
        draft, q = torch.where(new, drafts.tokens, carried), slide(kept, W, law)[0]
        if drafts.q is not None:
            q = torch.where(new[..., None], drafts.q, q)
        point = new & drafts.point
        if warm and step == 0:
            q = frontier.expand(-1, W, -1)
            forced = model.forced[ahead.clamp(max=L - 1)]
            drawn = race(q, noise.exponential("draft", (step + 1) * W + slot, V))
            draft, point = torch.where(forced >= 0, forced, drawn), forced >= 0
