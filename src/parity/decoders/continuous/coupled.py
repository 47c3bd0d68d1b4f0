"""Coupled continuous Jacobi: the walks of a window of places, drawn ahead and moved exactly when their laws move.

Source: ours, docs/explanation/heads.md; the fixed point is Wiggers & Hoogeboom 2020 (predictive sampling), the
coupling of a step De Bortoli et al. 2025.

Words. A *round* asks the network once for conditions; a *sweep* asks the head once for all steps of their walks that
are not verified. A step is *verified* once it was drawn or coupled under its place's present condition, from a point
that is verified itself. A place is final when all its steps are verified, its condition reads all places before it, and
these are final.

Why it is exact: order the coordinates by place, then from noisy to clean. Given the history of those before it, over
all rounds, a step's value is a draw of its present Gaussian: each coupling turns the old law into the new one with
fresh randomness, both laws are functions of that history, and whether a step is moved is, too.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parity.base.counts import Counts
from parity.base.noise import Noise
from parity.decoders.continuous.mar import write
from parity.decoders.continuous.spec_head import draft_walk, make_step, require_noise
from parity.decoders.coupling import couple
from parity.decoders.steps import Draw
from parity.decoders.verification import count_leading
from parity.models.continuous.protocol import Chain, Pair, Start

CLAIM = "lossless"
ORIGIN = "project"
EXACT_WITH = {"law": "exact"}  # the path stops within eps
EXACT_LAYER = {"law": "exact"}
COUPLED_WITH = {"law": "path"}
TARGETS = "walks"
SOURCE = "this project, 2026: docs/explanation/heads.md"
GROWTH = 50.0  # more than what still moves in a last round adds up to over steps and places: 35 as measured


class Walks(NamedTuple):
    """Walks of N tokens, or of the L places of B images; steps in their order, the noisiest first."""

    first: Tensor  # [..., D] x_T, which never moves
    x: Tensor  # [..., T, D] the points that the steps lead to; the last is the token
    z: Tensor  # [..., T, D] the noise that leads to them
    mean: Tensor  # [..., T, D] of the laws they were drawn from or coupled to
    std: Tensor
    verified: Tensor  # [...] steps

    def at(self, rows: Tensor, places: Tensor) -> "Walks":
        """Those of `places` [n, m] of the images `rows` [n], flat: [n m, ...]."""
        return Walks(*(v[rows[:, None], places].flatten(0, 1) for v in self))

    def put(self, rows: Tensor, places: Tensor, some: "Walks") -> None:
        for own, new in zip(self, some, strict=True):
            own[rows[:, None], places] = new.unflatten(0, places.shape)


def start_walks(chain: Chain, noise: Noise, B: int, L: int, dim: int) -> Walks:
    """Walks of all places under the prediction that stands for none."""
    T, device = chain.steps, noise.keys.device
    z = noise.normal("sample", torch.arange(L * (T + 1), device=device).expand(B, -1), dim).view(B * L, T + 1, dim)
    i = torch.arange(T, 0, -1, device=device).expand(B * L, -1)
    step = make_step(chain, i, chain.prior.expand(B * L, T, -1))
    points, (mean, std) = draft_walk(z[:, T], step, z[:, :T].flip(1))
    none = torch.zeros(B * L, dtype=torch.int64, device=device)
    each = (points[:, 0], points[:, 1:], z[:, :T].flip(1), mean, std, none)
    return Walks(*(v.unflatten(0, (B, L)).clone() for v in each))


def sweep(walks: Walks, chain: Chain, noise: Noise, index: Tensor, theta: float | None, eps: float) -> Walks:
    """One sweep over N walks: the head is asked once, at the points of all steps that are not verified.

    Each of these steps is moved to its law under that, from the point before it as it stands. It is coupled where the
    two means are within theta deviations (None: nowhere), and keeps its noise elsewhere, where it stays if it moves by
    eps or less. All up to the first that moves are verified, and that one: it was moved from a verified point. The
    steps behind it are drawn anew with their noise. index [N, T] names the draws.
    """
    T = chain.steps
    steps = torch.arange(T, device=index.device)
    unverified = steps >= walks.verified[:, None]
    points, (walk, s) = torch.cat([walks.first[:, None], walks.x[:, :-1]], 1), unverified.nonzero(as_tuple=True)
    prediction = chain.predict_where(unverified, points, (T - steps).expand_as(unverified))
    step, before = make_step(chain, T - s, prediction), points[unverified]
    old, z, mean_q, std_q = (v[walk, s] for v in walks[1:5])
    mean, std = step.mean(before), step.std
    new = mean + std * z
    kept, moved = (new - old).abs().amax(-1) <= eps, z
    if theta is not None:
        near = ((mean_q - mean) / std_q.where(std_q > 0, 1)).norm(dim=-1) <= theta
        q, p = (mean_q[:, None], std_q[:, None]), (mean[:, None], std[:, None])  # of one point each
        reached, same = (v[:, 0] for v in couple(old[:, None], q, p, noise.take(walk), index[walk, s, None]))
        new, kept = torch.where(near[:, None], reached, new), torch.where(near, same, kept)
        moved = torch.where(near[:, None] & (std > 0), (new - mean) / std, z)
    verified = (count_leading(torch.ones_like(index, dtype=torch.bool).index_put((walk, s), kept)) + 1).clamp(max=T)
    moved = torch.where((s < verified[walk])[:, None], moved, z)
    each = zip(walks[1:5], (new, moved, mean, std), strict=True)
    x, z, mean, std = (of_all.index_put((walk, s), here) for of_all, here in each)
    offset, slope = (torch.zeros_like(x).index_put((walk, s), v) for v in step[:2])
    for k in range(int(verified.min()), T):
        anew = (verified <= k)[:, None]
        mean[:, k] = torch.where(anew, offset[:, k] + slope[:, k] * x[:, k - 1], mean[:, k])
        x[:, k] = torch.where(anew, mean[:, k] + std[:, k] * z[:, k], x[:, k])
    return Walks(walks.first, x, z, mean, std, verified)


@torch.inference_mode()
def coupled(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096), Counts("positions")] = 8,
    sweeps: Annotated[int, Field(ge=1, le=1024)] = 2,
    reads: Literal["final", "drafts"] = "final",
    theta: Annotated[float, Field(ge=0)] = 0.3,
    law: Literal["exact", "path"] = "exact",
    eps: Annotated[float, Field(ge=0)] = 1e-3,
) -> Iterator[Draw]:
    """All positions of a window are drawn at once, each with its whole walk.

    window  positions drawn at once
    sweeps  least calls of the head in a round, which goes on until its first position is final
    reads   what the network reads for a position behind the first: "final" tokens alone, one evaluation for all, or the
            "drafts" before it too: fewer rounds, but an evaluation each where attention is bidirectional. A causal
            network always reads drafts
    theta   deviations between two means up to which a step is coupled; beyond, it keeps its noise
    law     "exact": the target's law. "path": every step keeps its noise, and the image is, within `eps`, what plain
            decoding draws under this very noise
    eps     largest difference to plain decoding under `law: path`
    """
    target, (B, L), device = models.target, start.order.shape, start.order.device
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype, device=device)  # by place
    place, at, rounds = torch.arange(L, device=device), torch.zeros(B, dtype=torch.int64, device=device), 0
    changed, walks = torch.ones(B, L, dtype=torch.bool, device=device), None
    near, still = (theta, 0.0) if law == "exact" else (None, eps / GROWTH)
    of_drafts = reads == "drafts" or target.raster
    while len(rows := (at < L).nonzero().flatten()):
        distance = place - at[rows, None]
        inside = (distance >= 0) & (distance < window)
        if not of_drafts:  # a draft is renewed each time its place is twice as near
            todo = inside & (distance & (distance - 1) == 0)
        elif walks is None:
            todo = inside
        else:
            todo = inside & (changed[rows] | (walks.verified[rows] < target.steps))
        asked = todo.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(todo.sum(1).max())]
        known = asked if of_drafts else at[rows, None].expand_as(asked)
        model, grid = target.take(rows), write(torch.zeros_like(tokens[rows]), start.order[rows], tokens[rows])
        chain = model.chain(model.conditions(grid, start.order[rows], asked, known))
        if walks is None:
            if law == "exact":
                require_noise(chain, "coupled")
            walks = start_walks(chain, noise, B, L, target.dim)
        walks.verified[rows] = walks.verified[rows].masked_fill(changed[rows] & todo, 0)
        image, accepted = rows.repeat_interleave(asked.shape[1]), torch.zeros_like(at)
        own, most = noise.take(image), max(sweeps, chain.steps)
        base = asked.flatten()[:, None] * chain.steps + torch.arange(chain.steps, device=device)
        here, real = walks.at(rows, asked), todo.gather(1, asked).flatten()
        first = (asked == at[rows, None]).flatten()
        for k in range(most):  # every sweep verifies a step of each walk
            goes_on = real & (here.verified < chain.steps)
            if k >= sweeps:
                goes_on &= (first & goes_on).view(asked.shape).any(1).repeat_interleave(asked.shape[1])
            if not len(work := goes_on.nonzero().flatten()):
                break
            some = Walks(*(v[work] for v in here))
            if law == "path":  # small moves add up: nothing is verified before all of it stays, but at the first place
                some = some._replace(verified=torch.where(first[work], some.verified, 0))
            index = base[work] + L * chain.steps * (rounds * most + k)
            new = sweep(some, chain.take(work), own.take(work), index, near, still)
            accepted.index_add_(0, image[work], (new.verified - some.verified - 1).clamp(min=0))
            here = Walks(*(v.index_copy(0, work, w) for v, w in zip(here, new, strict=True)))
        walks.put(rows, asked, here)
        now = walks.x[rows, :, -1]
        far = torch.where(inside, (now - tokens[rows]).abs().amax(-1), 0)
        tokens[rows] = torch.where(inside[..., None], now, tokens[rows])
        settled = inside & (walks.verified[rows] == chain.steps) & ~mark_after_first(far > still)
        if of_drafts:
            changed[rows] = (changed[rows] & ~todo) | mark_after_first(far > 0)
        else:  # every condition changes with the next final token, and only the first has read all before its place
            settled &= distance == 0
        ahead = (at[rows, None] + place).clamp(max=L - 1)
        kept = count_leading(settled.gather(1, ahead)).minimum(L - at[rows])
        drawn = collect_final(walks, at, torch.zeros_like(at).index_copy(0, rows, kept))
        yield drawn._replace(accepted_drafts=accepted, standing=tokens.clone())
        at[rows], rounds = at[rows] + kept, rounds + 1


def mark_after_first(some: Tensor) -> Tensor:
    """Places [B, L] behind a place that is one of `some`."""
    return some.cumsum(1) - some.long() > 0


def collect_final(walks: Walks, at: Tensor, kept: Tensor) -> Draw:
    """The first kept[b] places from at[b] on, with the noise that leads to them."""
    L = walks.x.shape[1]
    where = (at[:, None] + torch.arange(max(1, int(kept.max())), device=at.device)).clamp(max=L - 1)
    each = walks.at(torch.arange(len(at), device=at.device), where)
    noise = torch.cat([each.z.flip(1), each.first[:, None]], 1)
    return Draw(each.x[:, -1].unflatten(0, where.shape), kept, noise=noise.unflatten(0, where.shape))
