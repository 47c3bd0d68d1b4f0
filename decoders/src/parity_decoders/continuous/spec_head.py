"""A speculative head: the steps of one token's walk drafted several at a time, verified in one call, coupled exactly.

Source: De Bortoli et al. 2025 (accelerated speculative diffusion), sec. 4, for a head whose deviations are learned and
differ between draft and target: docs/explanation/heads.md. The network is called as in plain decoding, the
head fewer times.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.continuous.mar import plan_iterations, write
from parity_decoders.counts import Counts
from parity_decoders.coupling import Gaussian, couple
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import Affine, Chain, Pair, Start
from parity_decoders.steps import Draw
from parity_decoders.verification import count_leading

CLAIM = "lossless"
ORIGIN = "project"
MARK = "ours, after De Bortoli et al. 2025"
EXACT_WITH = {"iterations": 0}  # otherwise tokens drawn in one iteration do not see each other
EXACT_LAYER = {"iterations": 0}
TARGETS = "walks"
SOURCE = "De Bortoli et al. 2025"


def make_step(chain: Chain, i: Tensor, prediction: Tensor) -> Affine:
    """Compute the Gaussians of the steps from x_i, i [...], under predictions [..., P]; the last one has deviation 0 if
    the sampler takes its mean."""
    step = chain.gaussian(i, prediction)
    return step._replace(std=step.std.masked_fill((i == 1)[..., None], 0)) if chain.last == "mean" else step


def require_noise(chain: Chain, method: str) -> None:
    """Raise DecodingError if the steps of a walk add no noise, because they could not be coupled."""
    if not chain.noisy:
        raise DecodingError(f"{method}: eta 0: steps without noise have no density to couple; allowed: eta above 0")


def draft_walk(x: Tensor, step: Affine, z: Tensor) -> tuple[Tensor, Gaussian]:
    """Walk K steps on from x [N, D] with noise z [N, K, D], by the Gaussians `step` [N, K, D]. Returns the points [N, K
    + 1, D], x first, and the distributions of the K new ones."""
    points = [x]
    for add, slope in zip((step.offset + step.std * z).unbind(1), step.slope.unbind(1), strict=True):
        points.append(add + slope * points[-1])
    line = torch.stack(points, 1)
    return line, (step.mean(line[:, :-1]), step.std)


def walk(chain: Chain, noise: Noise, rank: Tensor, dim: int, ahead: int, draft: str) -> tuple[Tensor, Tensor, Tensor]:
    """Draw x_0 [N, D] of N tokens of ranks [N], with a row of noise each, by steps drafted `ahead` at a time. Also
    returns the noise [N, T + 1, D] that leads to it, and how many drafted steps [N] were accepted. draft: as in
    `spec_head`."""
    T = chain.steps
    N = len(rank)
    device = rank.device
    steps = torch.arange(T + 1, device=device)
    z = noise.normal("sample", rank[:, None] * (T + 1) + steps, dim)
    x = z[:, T].clone()  # the last final point
    next_step = torch.full_like(rank, T)  # the step that leads on from it
    accepted = torch.zeros_like(rank)
    predictions = chain.prior.expand(N, T + 1, -1).clone()  # what each step is drafted with
    while len(rows := (next_step > 0).nonzero().flatten()):
        row_chain = chain.take(rows)
        row_noise = noise.take(rows)
        i = next_step[rows, None] - steps[: min(ahead, int(next_step.max()))]
        real = i > 0
        i = i.clamp(min=1)
        r = torch.arange(len(rows), device=device)
        index = rank[rows, None] * (T + 1) + i
        points, q = draft_walk(x[rows], make_step(row_chain, i, predictions[rows[:, None], i]), z[rows[:, None], i - 1])
        prediction = row_chain.predict(points[:, :-1], i)
        step = make_step(row_chain, i, prediction)
        p = step.mean(points[:, :-1]), step.std
        new, unchanged = couple(points[:, 1:], q, p, row_noise, index)
        accepted[rows] += count_leading(unchanged).minimum(real.sum(1))
        final = (count_leading(unchanged) + 1).minimum(real.sum(1))  # the first step that moved is a draw of p too
        is_final = real & (steps[: i.shape[1]] < final[:, None])
        x[rows] = new[r, final - 1]
        moved = torch.where(p[1] > 0, (new - p[0]) / p[1], 0)  # a step of deviation 0 has no noise
        row, k = is_final.nonzero(as_tuple=True)
        z[rows[row], i[row, k] - 1] = moved[row, k]
        source_step = final - 1 if draft == "frozen" else real.sum(1) - 1
        predictions[rows] = prediction[r, source_step][:, None]
        if draft == "sweep":  # each step has its own last prediction, which was made near the point it has now
            row, k = real.nonzero(as_tuple=True)
            predictions[rows[row], i[row, k]] = prediction[row, k]
        next_step[rows] -= final
    return x, z, accepted


@torch.inference_mode()
def spec_head(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    ahead: Annotated[int, Interval(ge=1, le=1024), Counts("steps", small=3)] = 8,
    draft: Literal["sweep", "frozen"] = "sweep",
    iterations: Annotated[int, Interval(ge=0, le=100_000), Counts("passes", most="length")] = 0,
    schedule: Literal["cosine", "constant"] = "cosine",
) -> Iterator[Draw]:
    """Draft steps of a token's walk, and verify them in one call of the head.

    ahead       steps drafted and verified in one call
    draft       what a step is drafted with: the head's last prediction of that very step ("sweep"), or its prediction
                at the last final point ("frozen", the paper's)
    iterations, schedule  as in `mar`
    """
    target = models.target
    tokens = torch.zeros(*start.order.shape, target.dim, dtype=noise.dtype, device=start.order.device)
    for ranks in plan_iterations(start, iterations, schedule):
        chain = target.chain(target.conditions(tokens, start.order, ranks, ranks[:, :1]))
        require_noise(chain, "spec_head")
        each = noise.take(torch.arange(len(ranks), device=ranks.device).repeat_interleave(ranks.shape[1]))
        walks = walk(chain, each, ranks.flatten(), target.dim, ahead, draft)
        drawn, z, accepted = (v.unflatten(0, ranks.shape) for v in walks)
        tokens = write(tokens, start.order.gather(1, ranks), drawn)
        n_kept = torch.full_like(ranks[:, 0], ranks.shape[1])
        yield Draw(drawn, n_kept, noise=z, accepted_drafts=accepted.sum(1))
