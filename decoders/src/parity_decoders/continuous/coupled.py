"""Coupled continuous Jacobi: the walks of a window of ranks, drawn ahead and moved exactly when their distributions
move.

Source: ours, docs/explanation/heads.md; the fixed point is Wiggers & Hoogeboom 2020 (predictive sampling), the
coupling of a step De Bortoli et al. 2025.

Words. A *round* asks the network once for conditions; a *sweep* asks the head once for all steps of their walks that
are not verified. A step is *verified* once it was drawn or coupled under its rank's present condition, from a point
that is verified itself. A rank is final when all its steps are verified, its condition reads all ranks before it, and
these are final.

Why it is exact: order the coordinates by rank, then from noisy to clean. Given the history of those before it, over
all rounds, a step's value is a draw of its present Gaussian: each coupling turns the old distribution into the new one
with fresh randomness, both distributions are functions of that history, and whether a step is moved is, too.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.continuous.mar import write
from parity_decoders.continuous.spec_head import draft_walk, make_step, require_noise
from parity_decoders.counts import Counts
from parity_decoders.coupling import couple
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import Chain, Pair, Start
from parity_decoders.steps import Draw
from parity_decoders.verification import count_leading

CLAIM = "lossless"
ORIGIN = "project"
EXACT_WITH = {"goal": "exact"}  # with `goal: path` tokens are meant to be within eps of plain decoding's
EXACT_LAYER = {"goal": "exact"}
COUPLED_WITH = {"goal": "path"}
TARGETS = "walks"
SOURCE = "this project, 2026: docs/explanation/heads.md"
GROWTH = 1e5  # moves left standing may grow so much over steps and ranks; no bound is known, see heads.md
ROUNDING = 16  # units of the last place: smaller moves are rounding


class Walks(NamedTuple):
    """Walks of N tokens, or of the L ranks of B images; steps in their order, the noisiest first."""

    first: Tensor  # [..., D] x_T, which never moves
    x: Tensor  # [..., T, D] the points that the steps lead to; the last is the token
    z: Tensor  # [..., T, D] the noise that leads to them
    mean: Tensor  # [..., T, D] means of the distributions that they were drawn from or coupled to
    std: Tensor
    verified: Tensor  # [...] how many steps are verified

    def select(self, rows: Tensor, ranks: Tensor) -> "Walks":
        """Select the walks of `ranks` [n, m] of the images `rows` [n], flattened to [n m, ...]."""
        return Walks(*(v[rows[:, None], ranks].flatten(0, 1) for v in self))

    def put(self, rows: Tensor, ranks: Tensor, walks: "Walks") -> None:
        """Write walks [n m, ...] in place at `ranks` [n, m] of the images `rows` [n]."""
        for values, new in zip(self, walks, strict=True):
            values[rows[:, None], ranks] = new.unflatten(0, ranks.shape)


class Rule(NamedTuple):
    """When a step counts as verified."""

    theta: float | None  # deviations between two means up to which a step is coupled; None: no step is
    eps: float  # largest move of a step that keeps its noise
    path: bool  # small moves add up: after the first rank no step is verified before its whole walk stays
    sweeps: int  # least sweeps of a round


def start_walks(chain: Chain, noise: Noise, B: int, L: int, dim: int) -> Walks:
    """Draw the walks of B images' L ranks, [B, L, ...], under the prior prediction, with none of their steps
    verified."""
    T = chain.steps
    device = noise.keys.device
    z = noise.normal("sample", torch.arange(L * (T + 1), device=device).expand(B, -1), dim).view(B * L, T + 1, dim)
    i = torch.arange(T, 0, -1, device=device).expand(B * L, -1)
    step = make_step(chain, i, chain.prior.expand(B * L, T, -1))
    points, (mean, std) = draft_walk(z[:, T], step, z[:, :T].flip(1))
    verified = torch.zeros(B * L, dtype=torch.int64, device=device)
    values = (points[:, 0], points[:, 1:], z[:, :T].flip(1), mean, std, verified)
    return Walks(*(v.unflatten(0, (B, L)).clone() for v in values))


def sweep(walks: Walks, chain: Chain, noise: Noise, index: Tensor, theta: float | None, eps: float) -> Walks:
    """Sweep over N walks once: ask the head at the points of all unverified steps, and move each step to its new
    distribution.

    A step starts from the present point before it. It is coupled where the two means are within theta deviations (None:
    nowhere). Elsewhere it keeps its noise, and counts as unmoved if it moves by eps or less. The steps up to and with
    the first that moves are verified, because that one was moved from a verified point. The later steps are drawn anew
    with their noise. index [N, T] names the draws.
    """
    T = chain.steps
    steps = torch.arange(T, device=index.device)
    unverified = steps >= walks.verified[:, None]
    points = torch.cat([walks.first[:, None], walks.x[:, :-1]], 1)
    walk, s = unverified.nonzero(as_tuple=True)
    prediction = chain.predict_where(unverified, points, (T - steps).expand_as(unverified))
    step = make_step(chain, T - s, prediction)
    old, z, mean_q, std_q = (v[walk, s] for v in walks[1:5])
    mean = step.mean(points[unverified])
    std = step.std
    new = mean + std * z
    unmoved = (new - old).abs().amax(-1) <= eps
    new_z = z
    if theta is not None:
        close = ((mean_q - mean) / std_q.where(std_q > 0, 1)).norm(dim=-1) <= theta
        q, p = (mean_q[:, None], std_q[:, None]), (mean[:, None], std[:, None])  # each is a group of one point
        reached, unchanged = (v[:, 0] for v in couple(old[:, None], q, p, noise.take(walk), index[walk, s, None]))
        new = torch.where(close[:, None], reached, new)
        unmoved = torch.where(close, unchanged, unmoved)
        new_z = torch.where(close[:, None] & (std > 0), (new - mean) / std, z)
    holds = torch.ones_like(index, dtype=torch.bool).index_put((walk, s), unmoved)
    verified = (count_leading(holds) + 1).clamp(max=T)
    new_z = torch.where((s < verified[walk])[:, None], new_z, z)
    values = zip(walks[1:5], (new, new_z, mean, std), strict=True)
    x, z, mean, std = (v.index_put((walk, s), changed) for v, changed in values)
    offset, slope = (torch.zeros_like(x).index_put((walk, s), v) for v in step[:2])
    for k in range(int(verified.min()), T):
        redrawn = (verified <= k)[:, None]
        mean[:, k] = torch.where(redrawn, offset[:, k] + slope[:, k] * x[:, k - 1], mean[:, k])
        x[:, k] = torch.where(redrawn, mean[:, k] + std[:, k] * z[:, k], x[:, k])
    return Walks(walks.first, x, z, mean, std, verified)


def run_sweeps(
    walks: Walks, chain: Chain, noise: Noise, index: Tensor, stride: int, wanted: Tensor, first: Tensor, rule: Rule
) -> tuple[Walks, Tensor]:
    """Sweep over the n m walks of a round `rule.sweeps` times, then until each image's first open rank is verified.

    wanted, first [n, m] bool: which walks the round moves, and which are of the first open rank; index [n m, T] names
    the draws of the first sweep, that of each later one is `stride` more. Returns the walks, and how many steps [n m]
    were accepted.
    """
    accepted = torch.zeros_like(walks.verified)
    for k in range(max(rule.sweeps, chain.steps)):  # every sweep verifies a step of each walk
        unfinished = wanted.flatten() & (walks.verified < chain.steps)
        if k >= rule.sweeps:
            waiting = (first.flatten() & unfinished).view(first.shape).any(1)
            unfinished &= waiting.repeat_interleave(first.shape[1])
        walk = unfinished.nonzero().flatten()
        if not len(walk):
            break
        old = Walks(*(v[walk] for v in walks))
        if rule.path:
            old = old._replace(verified=torch.where(first.flatten()[walk], old.verified, 0))
        new = sweep(old, chain.take(walk), noise.take(walk), index[walk] + stride * k, rule.theta, rule.eps)
        accepted.index_add_(0, walk, (new.verified - old.verified - 1).clamp(min=0))
        walks = Walks(*(v.index_copy(0, walk, w) for v, w in zip(walks, new, strict=True)))
    return walks, accepted


@torch.inference_mode()
def coupled(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions")] = 8,
    sweeps: Annotated[int, Interval(ge=1, le=1024)] = 2,
    reads: Literal["final", "drafts"] = "final",
    theta: Annotated[float, Interval(ge=0)] = 0.3,
    goal: Literal["exact", "path"] = "exact",
    eps: Annotated[float, Interval(ge=0)] = 1e-3,
) -> Iterator[Draw]:
    """Draw all positions of a window at once, each with its whole walk.

    window  positions drawn at once
    sweeps  least calls of the head in a round, which goes on until its first position is final
    reads   what the network reads for a position after the first: "final" tokens alone, one evaluation for all, or the
            "drafts" before it too: fewer rounds, but an evaluation each where attention is bidirectional. A causal
            network always reads drafts
    theta   deviations between two means up to which a step is coupled; beyond, it keeps its noise
    goal    "exact": the target's distribution. "path": every step keeps its noise, and the image is meant to be, within
            `eps`, what plain decoding draws under the same noise
    eps     largest difference to plain decoding that `goal: path` aims at: moves of eps / 100,000 or less are left
            standing. They grow over steps and ranks, and no bound is known; 700 times is the most that was measured.
            In float32 moves of 1.9e-6 are rounding, and are left standing too
    """
    target = models.target
    B, L = start.order.shape
    device = start.order.device
    standing = max(eps / GROWTH, ROUNDING * torch.finfo(noise.dtype).eps)  # moves up to this are left standing
    rule = Rule(theta, 0.0, False, sweeps) if goal == "exact" else Rule(None, standing, True, sweeps)
    reads_drafts = reads == "drafts" or target.raster
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype, device=device)  # in the order of ranks
    rank = torch.arange(L, device=device)
    frontier = torch.zeros(B, dtype=torch.int64, device=device)  # first open rank
    changed = torch.ones(B, L, dtype=torch.bool, device=device)  # ranks whose condition may differ from the last one
    walks: Walks | None = None
    draws = 0  # numbers below this name the draws of earlier rounds
    while len(rows := (frontier < L).nonzero().flatten()):
        distance = rank - frontier[rows, None]
        in_window = (distance >= 0) & (distance < window)
        if not reads_drafts:  # a draft is renewed each time its rank is twice as near
            renewed = in_window & (distance & (distance - 1) == 0)
        elif walks is None:
            renewed = in_window
        else:
            renewed = in_window & (changed[rows] | (walks.verified[rows] < target.steps))
        ranks = renewed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(renewed.sum(1).max())]
        n_known = ranks if reads_drafts else frontier[rows, None].expand_as(ranks)
        model = target.take(rows)
        grid = write(torch.zeros_like(tokens[rows]), start.order[rows], tokens[rows])
        chain = model.chain(model.conditions(grid, start.order[rows], ranks, n_known))
        if walks is None:
            if goal == "exact":
                require_noise(chain, "coupled")
            walks = start_walks(chain, noise, B, L, target.dim)
        walks.verified[rows] = walks.verified[rows].masked_fill(changed[rows] & renewed, 0)

        image = rows.repeat_interleave(ranks.shape[1])
        index = draws + ranks.flatten()[:, None] * chain.steps + torch.arange(chain.steps, device=device)
        wanted = renewed.gather(1, ranks)
        first = ranks == frontier[rows, None]
        stride = L * chain.steps
        draws += stride * max(sweeps, chain.steps)
        swept, steps = run_sweeps(
            walks.select(rows, ranks), chain, noise.take(image), index, stride, wanted, first, rule
        )
        walks.put(rows, ranks, swept)

        new = walks.x[rows, :, -1]
        move = torch.where(in_window, (new - tokens[rows]).abs().amax(-1), 0)
        tokens[rows] = torch.where(in_window[..., None], new, tokens[rows])
        final = in_window & (walks.verified[rows] == chain.steps) & ~mark_after_first(move > rule.eps)
        if reads_drafts:
            changed[rows] = (changed[rows] & ~renewed) | mark_after_first(move > 0)
        else:  # the next final token changes every condition: only the first open rank has read all before it
            final &= distance == 0
        n_kept = count_leading(final.gather(1, (frontier[rows, None] + rank).clamp(max=L - 1)))
        n_kept = torch.zeros_like(frontier).index_copy(0, rows, n_kept.minimum(L - frontier[rows]))
        drawn = collect_final(walks, frontier, n_kept)
        accepted = torch.zeros_like(frontier).index_add(0, image, steps)
        yield drawn._replace(accepted_drafts=accepted, standing=tokens.clone())
        frontier += n_kept


def mark_after_first(marks: Tensor) -> Tensor:
    """Mark the places [B, L] bool after the first true one of marks [B, L] in each row."""
    return marks.cumsum(1) - marks.long() > 0


def collect_final(walks: Walks, frontier: Tensor, n_kept: Tensor) -> Draw:
    """Make the `Draw` of a round: the first n_kept[b] tokens from rank frontier[b] on, with the noise that leads to
    them."""
    L = walks.x.shape[1]
    ranks = frontier[:, None] + torch.arange(max(1, int(n_kept.max())), device=frontier.device)
    ranks = ranks.clamp(max=L - 1)
    chosen = walks.select(torch.arange(len(frontier), device=frontier.device), ranks)
    noise = torch.cat([chosen.z.flip(1), chosen.first[:, None]], 1)
    return Draw(chosen.x[:, -1].unflatten(0, ranks.shape), n_kept, noise=noise.unflatten(0, ranks.shape))
