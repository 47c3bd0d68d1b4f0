"""Continuous speculative decoding: a draft model proposes a few vectors one by one, the target accepts them by a ratio
of densities.

Source: Continuous Speculative Decoding for Autoregressive Image Generation, Alg. 1, Eqs. 4 to 13, appendices A and E.
Where the released code differs from the equations, the equations are the default and the code's behaviour is the option
named second.

On a head with densities in closed form (a Gaussian mixture) the ratio is p(x)/q(x) and the decoder is exact speculative
sampling. On a diffusion head it is the paper's surrogate, a ratio of two trajectories that share x_0, which is biased
(its appendix A.1.2 says so) wherever a draft is accepted.
"""

from collections.abc import Iterator
from math import ceil
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.continuous.mar import mar, write
from parity_decoders.counts import Counts
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import ContinuousModel, Pair, Start, TokenDistributions, make_path_noise
from parity_decoders.steps import Draw
from parity_decoders.verification import count_leading

CLAIM = "lossless"
EXACT_LAYER = {"inner_temperature": 1.0}  # a closed form has no residuals to divide
NEEDS = "draft"
AT_ONCE = 128  # this many tries of the residual sampler are evaluated before a test whether one was accepted
SOURCE = "Wang et al. 2024 (continuous speculative decoding), Alg. 1"


def propose(
    draft: ContinuousModel, tokens: Tensor, order: Tensor, ranks: Tensor, noise: Noise, use: str
) -> tuple[Tensor, list[TokenDistributions]]:
    """Draw the tokens of ranks [N, W] from the draft model one by one, each given those before it. Returns drafts [N,
    W, D] and their distributions, a list of W with N rows each. use: the noise that they are drawn with."""
    drafts, distributions = [], []
    for rank in ranks.split(1, 1):
        path = make_path_noise(noise, use, rank, draft.steps, draft.dim)
        distributions.append(draft.distribution(draft.conditions(tokens, order, rank, rank), path))
        drafts.append(distributions[-1].sample(path)[:, None])
        tokens = write(tokens, order.gather(1, rank), drafts[-1])
    return torch.cat(drafts, 1), distributions


def sample_residual(
    p: TokenDistributions,
    q: TokenDistributions,
    log_sigma: Tensor,
    noise: Noise,
    ranks: Tensor,
    dim: int,
    tries: int,
    inner: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample max(0, p - q) by acceptance-rejection with p as the proposal (Eqs. 10 to 13), for N rows at ranks [N].

    log_sigma [N]: of eq. 8; tries: most draws of a row; inner: divides the residuals in the ratio. Returns tokens [N,
    D] (the last proposal where none was accepted), the number of draws [N], and [N] bool whether none was accepted.
    """
    accepted, n_draws = torch.zeros_like(ranks, dtype=torch.bool), torch.zeros_like(ranks)
    tokens = torch.zeros(len(ranks), dim, dtype=noise.dtype, device=ranks.device)
    row = torch.arange(len(ranks), device=ranks.device)
    size = 1 if ranks.device.type == "cpu" else AT_ONCE
    first = 0
    while first < tries:
        n = min(size, tries - first)
        index = (ranks * tries + first)[:, None] + torch.arange(n, device=ranks.device)
        each = row.repeat_interleave(n, output_size=n * len(row))

        def path(i: int, index: Tensor = index) -> Tensor:
            """Draw normals [N n, D] for the n tries of each row: step i of a walk."""
            return noise.normal("retry", 2 * index + i, dim).flatten(0, 1)

        p_rows = p.rows(each)
        x = p_rows.propose(path)
        ratio = q.rows(each).log_density(x, inner) - p_rows.log_density(x, inner) - log_sigma[each]
        threshold = -torch.expm1(ratio)  # alpha_s, 1 - exp(ratio); below 0 where p < q
        hit = noise.uniform("retry", -1 - index) < threshold.view(-1, n)
        misses = count_leading(~hit)
        chosen = x.view(-1, n, dim)[row, misses.clamp(max=n - 1)]
        tokens = torch.where(accepted[:, None], tokens, chosen)
        n_draws = n_draws + torch.where(accepted, 0, (misses + 1).clamp(max=n))
        accepted = accepted | (misses < n)
        first = first + n
        size = min(2 * size, AT_ONCE)
        if first < tries and bool(accepted.all()):
            break
    return tokens, n_draws, ~accepted


def judge(
    target: ContinuousModel, tokens: Tensor, drafts: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor, noise: Noise
) -> tuple[Tensor, list[TokenDistributions]]:
    """Evaluate the target at ranks [N, S], given the drafts [N, W, D] of the first W ranks, of which each rank sees
    those below n_known [N, S], or [N, 1] for all. Returns the target's draws [N, S, D], and its distributions, S of N
    rows each.
    """
    (N, S) = ranks.shape
    W = drafts.shape[1]
    filled = write(tokens, order.gather(1, ranks[:, :W]), drafts)
    row = torch.arange(N, device=ranks.device)
    path = make_path_noise(noise, "sample", ranks, target.steps, target.dim)
    distributions = target.distribution(target.conditions(filled, order, ranks, n_known), path)
    return distributions.sample(path).unflatten(0, (N, S)), [distributions.rows(row * S + j) for j in range(S)]


class Distributions(NamedTuple):
    """Distributions of W drafts in each of N rows, as lists of W."""

    p: list[TokenDistributions]  # the target's distributions, W of N rows each
    q: list[TokenDistributions]  # the draft model's distributions, likewise
    log_sigma: Tensor  # [N, W] the path's share of the log-ratio, eq. 8

    def log_ratio(self, drafts: Tensor, inner: float) -> Tensor:
        """Compute log p(Y_p) / q(Y_q) [N, W] of the drafts [N, W, D] (eq. 9)."""
        each = zip(self.p, self.q, drafts.unbind(1), strict=True)
        return torch.stack([p.log_density(x, inner) - q.log_density(x, inner) for p, q, x in each], 1) + self.log_sigma


def correct(
    new: Tensor,
    rejected: Tensor,
    distributions: Distributions,
    noise: Noise,
    ranks: Tensor,
    tries: int,
    inner: float,
    give_up: str,
) -> tuple[Tensor, Tensor]:
    """Replace, in place, the tokens `rejected` [N, W] bool among `new` [N, W + 1, D] by draws from the residual. Where
    none of `tries` draws is accepted, give_up says what is taken: the last draw ("target"), zeros, or a DecodingError.
    Returns the draws made [N], and how often none was accepted [N]."""
    n_draws, failed = torch.zeros_like(ranks[:, 0]), torch.zeros_like(ranks[:, 0])
    for j, column in enumerate(rejected.T.tolist()):
        if not any(column):
            continue
        r = torch.tensor([row for row, wrong in enumerate(column) if wrong], device=ranks.device)
        distributions_of_rows = (distributions.p[j].rows(r), distributions.q[j].rows(r), distributions.log_sigma[r, j])
        rank = ranks[r, j]
        x, draws, none = sample_residual(*distributions_of_rows, noise.take(r), rank, new.shape[2], tries, inner)
        if give_up == "error" and bool(none.any()):
            problem = f"none of {tries} draws was accepted; allowed: more tries, or give_up: target"
            raise DecodingError(f"place {int(rank[none][0])}: {problem}")
        new[r, j] = torch.where(none[:, None], 0, x) if give_up == "zero" else x
        n_draws[r], failed[r] = n_draws[r] + draws, failed[r] + none
    return n_draws, failed


def check_models(models: Pair, gamma: int) -> ContinuousModel:
    """Return the draft model of the pair. Raises DecodingError if it is missing or does not fit the target, or if gamma
    exceeds the image."""
    target, draft = models
    if draft is None:
        raise DecodingError("cspd: the model has no draft; allowed: a pair of target and draft")
    target_sizes, draft_sizes = ((m.length, m.dim, m.steps) for m in (target, draft))
    if target_sizes != draft_sizes:
        problem = f"target and draft have (tokens, numbers a token, steps) {target_sizes} and {draft_sizes}"
        raise DecodingError(f"cspd: {problem}; allowed: the same")
    if gamma > target.length:
        raise DecodingError(f"gamma {gamma}: allowed: at most the {target.length} tokens of an image")
    return draft


@torch.inference_mode()
def cspd(
    models: Pair,
    start: Start,
    *,
    noise: Noise,
    gamma: Annotated[int, Interval(ge=1, le=256), Counts("positions", small=3, most="length")] = 8,
    prefill: Annotated[float, Interval(ge=0, le=1), Counts("share", small=0.0)] = 0.05,
    align: bool = True,
    verify: Literal["each", "blind"] = "each",
    sigma: Literal["paper", "inverted"] = "paper",
    inner_temperature: Annotated[float, Interval(gt=0)] = 1.0,
    resample: Literal["same", "untempered"] = "same",
    truncate: bool = True,
    tries: Annotated[int, Interval(ge=1, le=100_000)] = 100,
    give_up: Literal["target", "zero", "error"] = "target",
) -> Iterator[Draw]:
    """Verify `gamma` drafts per step, keep those before the first rejected one and add one token of the target.

    gamma              tokens drafted per step
    prefill            share of the image that the target draws alone at first (sec. 3.2)
    align              target and draft walk their trajectories with the same noise (Theorem 1)
    verify             "each": the target judges a draft given every draft before it (Alg. 1). "blind": given none of
                       them, as released
    sigma              of eq. 8, or its inverse, as released
    inner_temperature  divides the residuals in the acceptance ratio; 42 as released
    resample           the residual distribution of that same ratio, or of the ratio without inner_temperature, as
                       released
    truncate           a rejected draft removes those after it; false, as released: each is judged by itself
    tries              most draws of the residual sampler
    give_up            used when none was accepted: a draw of the target (counted, and shown), a zero vector, as
                       released, or an error
    """
    target = models.target
    draft = check_models(models, gamma)
    (B, L) = start.order.shape
    device = start.order.device
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype, device=device)
    first = ceil(prefill * L)
    for rank, drawn in zip(range(first), mar(models, start, noise=noise), strict=False):
        tokens = write(tokens, start.order[:, rank : rank + 1], drawn.tokens)
        yield drawn
    frontier = torch.full((B,), first, device=device)  # first open rank
    while min(frontiers := frontier.tolist()) < L:  # finished rows take no part
        W = min(gamma, L - min(frontiers))
        rows = torch.tensor(frontiers).lt(L).nonzero().flatten().to(device)
        order = start.order[rows]
        row_tokens = tokens[rows]
        row_noise = noise.take(rows)
        row_frontier = frontier[rows, None]
        slot = torch.arange(W + 1, device=device)
        real = row_frontier + slot[:W] < L
        ranks = (row_frontier + slot).clamp(max=L - 1)  # a slot past a row's end repeats its last rank, and is not read
        drafts, q = propose(
            draft.take(rows), row_tokens, order, ranks[:, :W], row_noise, "sample" if align else "draft"
        )
        # Alg. 1 needs one more distribution, for the token after drafts that were all kept; the released code needs
        # none.
        queried = ranks if truncate else ranks[:, :W]
        n_known = queried if verify == "each" else row_frontier
        target_draws, p = judge(target.take(rows), row_tokens, drafts, order, queried, n_known, row_noise)
        log_sigma = torch.stack([qj.log_sigma - pj.log_sigma for pj, qj in zip(p[:W], q, strict=True)], 1)
        distributions = Distributions(p[:W], q, -log_sigma if sigma == "inverted" else log_sigma)
        log_ratio = distributions.log_ratio(drafts, inner_temperature)
        accepted = (row_noise.uniform("accept", ranks[:, :W]).log() < log_ratio) & real
        stand = count_leading(accepted) if truncate else real.sum(1)  # [N] how many drafts are kept
        verified = real & ((slot[:W] <= stand[:, None]) if truncate else True)
        new = torch.cat([drafts, target_draws[:, -1:]], 1)
        inner = inner_temperature if resample == "same" else 1.0
        n_draws, failed = correct(new, verified & ~accepted, distributions, row_noise, ranks, tries, inner, give_up)
        n_kept = (stand + 1 if truncate else stand).minimum(L - frontier[rows])
        distance = ((drafts - target_draws[:, :W]) ** 2).sum(-1)
        tokens[rows] = write_first(row_tokens, order, ranks, new, n_kept)
        drawn = Draw(
            *(spread_rows(x, rows, B) for x in (new, n_kept, verified, accepted, log_ratio, distance, n_draws, failed))
        )
        yield drawn._replace(accepted_drafts=spread_rows((verified & accepted).sum(1), rows, B))
        frontier[rows] += n_kept


def write_first(tokens: Tensor, order: Tensor, ranks: Tensor, new: Tensor, n_kept: Tensor) -> Tensor:
    """Return tokens [N, L, D] with the first n_kept[b] of `new` [N, W, D] written at the positions of ranks [N, W]."""
    L = tokens.shape[1]  # a spare position takes the tokens that are not kept
    is_kept = torch.arange(ranks.shape[1], device=ranks.device) < n_kept[:, None]
    return write(torch.cat([tokens, tokens[:, :1]], 1), torch.where(is_kept, order.gather(1, ranks), L), new)[:, :L]


def spread_rows(values: Tensor, rows: Tensor, B: int) -> Tensor:
    """Spread values [N, ...] of the rows with numbers `rows` [N] over all B rows; the others hold zeros."""
    return values.new_zeros(B, *values.shape[1:]).index_copy(0, rows, values)
