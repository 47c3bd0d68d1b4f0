"""Coupled continuous Jacobi: all places of a window at once, each with its whole walk, moved exactly when laws move.

Source: ours, docs/explanation/heads.md; the fixed point is Wiggers & Hoogeboom 2020 (predictive sampling), the
coupling of a step De Bortoli et al. 2025.

Words. A *round* asks the network once for the conditions of all places that may have changed; a *sweep* asks the head
once for all steps of their walks. A step is *verified* once it was drawn or coupled under its place's present
condition, from a point that is verified itself. A place is final when all its steps are verified and all places before
it are final.

Why it is exact: order the coordinates by place, then from noisy to clean. Given the history of those before it, over
all rounds, a step's value is a draw of its present Gaussian: each coupling turns the old law into the new one with
fresh randomness, both laws are functions of that history, and whether a step is moved is, too.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.continuous.mar import write
from parity.decoders.continuous.spec_head import drafted, require_noise, step_of
from parity.decoders.coupling import Gaussian
from parity.decoders.coupling import coupled as couple
from parity.decoders.steps import Draw
from parity.decoders.verification import run
from parity.models.continuous.protocol import Chain, Pair, Start

CLAIM = "lossless"
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
    step = step_of(chain, i, chain.prior.expand(B * L, T, -1))
    points, (mean, std) = drafted(z[:, T], step, z[:, :T].flip(1))
    none = torch.zeros(B * L, dtype=torch.int64, device=device)
    each = (points[:, 0], points[:, 1:], z[:, :T].flip(1), mean, std, none)
    return Walks(*(v.unflatten(0, (B, L)).clone() for v in each))


def pointwise(law: Sequence[Tensor]) -> Gaussian:
    """A law [N, D] as one of one point each."""
    return law[0][:, None], law[1][:, None]


def swept(walks: Walks, chain: Chain, noise: Noise, index: Tensor, theta: float | None, eps: float) -> Walks:
    """One sweep over N walks: the head speaks once, at all points, and every step that is not verified is moved to its
    law under that, from the point that the step before has moved to. It is coupled where the two means are within theta
    deviations (None: nowhere) and has its noise elsewhere, where it stays if it moves by eps or less. index [N, T]
    names the draws."""
    T = chain.steps
    steps = torch.arange(T, device=index.device)
    i = (T - steps).expand(len(index), -1)
    prediction = chain.predict(torch.cat([walks.first[:, None], walks.x[:, :-1]], 1), i)
    before, ahead = walks.first, step_of(chain, i, prediction)
    moved: list[list[Tensor]] = []
    stayed: list[Tensor] = []
    for s, old in enumerate(zip(*(v.unbind(1) for v in walks[1:5]), strict=True)):
        x, z, *q = old
        mean, std = p = ahead.at(s).mean(before), ahead.std[:, s]
        carried = mean + std * z
        new, kept = carried, (carried - x).abs().amax(-1) <= eps
        if theta is not None:
            near = ((q[0] - mean) / q[1].where(q[1] > 0, 1)).norm(dim=-1) <= theta
            laws = pointwise(q), pointwise(p)
            reached, same = (v[:, 0] for v in couple(x[:, None], *laws, noise, index[:, s : s + 1]))
            new, kept = torch.where(near[:, None], reached, carried), torch.where(near, same, kept)
            z = torch.where(near[:, None] & (std > 0), (new - mean) / std, z)
        behind = (walks.verified <= s)[:, None]
        moved.append([torch.where(behind, a, b) for a, b in zip((new, z, mean, std), old, strict=True)])
        stayed.append(kept)
        before = moved[-1][0]
    # the first step that moved is verified too: it was moved from a verified point
    behind = (steps + walks.verified[:, None]).clamp(max=T - 1)
    further = run(torch.stack(stayed, 1).gather(1, behind)) + 1
    x, z, mean, std = (torch.stack(v, 1) for v in zip(*moved, strict=True))
    return Walks(walks.first, x, z, mean, std, (walks.verified + further).clamp(max=T))


@torch.inference_mode()
def coupled(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 64,
    sweeps: Annotated[int, Field(ge=1, le=1024)] = 4,
    theta: Annotated[float, Field(ge=0)] = 0.3,
    law: Literal["exact", "path"] = "exact",
    eps: Annotated[float, Field(ge=0)] = 1e-3,
) -> Iterator[Draw]:
    """All positions of a window are drawn at once, each with its whole walk.

    window  positions drawn at once
    sweeps  most calls of the head in a round
    theta   deviations between two means up to which a step is coupled; beyond, it keeps its noise
    law     "exact": the target's law. "path": every step keeps its noise, and the image is, within `eps`, what plain
            decoding draws under this very noise
    eps     largest difference to plain decoding under `law: path`
    """
    target, (B, L), device = models.target, start.order.shape, start.order.device
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype, device=device)  # by place
    place, at, rounds = torch.arange(L, device=device), torch.zeros(B, dtype=torch.int64, device=device), 0
    changed, walks = torch.zeros(B, L, dtype=torch.bool, device=device), None
    near, still = (theta, 0.0) if law == "exact" else (None, eps / GROWTH)
    while len(rows := (at < L).nonzero().flatten()):
        inside = (place >= at[rows, None]) & (place < at[rows, None] + window)
        todo = inside if walks is None else inside & (changed[rows] | (walks.verified[rows] < target.steps))
        asked = todo.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(todo.sum(1).max())]
        model, grid = target.take(rows), write(torch.zeros_like(tokens[rows]), start.order[rows], tokens[rows])
        chain = model.chain(model.conditions(grid, start.order[rows], asked, asked))
        if walks is None:
            if law == "exact":
                require_noise(chain, "coupled")
            walks = start_walks(chain, noise, B, L, target.dim)
        walks.verified[rows] = walks.verified[rows].masked_fill(changed[rows] & todo, 0)
        image, accepted = rows.repeat_interleave(asked.shape[1]), torch.zeros_like(at)
        own = noise.take(image)
        base = asked.flatten()[:, None] * chain.steps + torch.arange(chain.steps, device=device)
        here, real = walks.at(rows, asked), todo.gather(1, asked).flatten()
        for k in range(sweeps):
            work = (real & (here.verified < chain.steps)).nonzero().flatten()
            if not len(work):
                break
            index = base[work] + L * chain.steps * (rounds * sweeps + k)
            some = Walks(*(v[work] for v in here))
            if law == "path":  # small moves add up: nothing is verified before all of it stays, but at the first place
                first = (asked == at[rows, None]).flatten()[work]
                some = some._replace(verified=torch.where(first, some.verified, 0))
            new = swept(some, chain.take(work), own.take(work), index, near, still)
            accepted.index_add_(0, image[work], (new.verified - some.verified - 1).clamp(min=0))
            here = Walks(*(v.index_copy(0, work, w) for v, w in zip(here, new, strict=True)))
        walks.put(rows, asked, here)
        now = walks.x[rows, :, -1]
        far = torch.where(inside, (now - tokens[rows]).abs().amax(-1), 0)
        tokens[rows] = torch.where(inside[..., None], now, tokens[rows])
        changed[rows] = (changed[rows] & ~todo) | behind(far > 0)
        settled = inside & (walks.verified[rows] == chain.steps) & ~behind(far > still)
        ahead = (at[rows, None] + place).clamp(max=L - 1)
        kept = run(settled.gather(1, ahead)).minimum(L - at[rows])
        drawn = final(walks, at, torch.zeros_like(at).index_copy(0, rows, kept))
        yield drawn._replace(accepted_drafts=accepted, standing=tokens.clone())
        at[rows], rounds = at[rows] + kept, rounds + 1


def behind(some: Tensor) -> Tensor:
    """Places [B, L] behind a place that is one of `some`."""
    return some.cumsum(1) - some.long() > 0


def final(walks: Walks, at: Tensor, kept: Tensor) -> Draw:
    """The first kept[b] places from at[b] on, with the noise that leads to them."""
    L = walks.x.shape[1]
    where = (at[:, None] + torch.arange(max(1, int(kept.max())), device=at.device)).clamp(max=L - 1)
    each = walks.at(torch.arange(len(at), device=at.device), where)
    noise = torch.cat([each.z.flip(1), each.first[:, None]], 1)
    return Draw(each.x[:, -1].unflatten(0, where.shape), kept, noise=noise.unflatten(0, where.shape))
