"""Test whether rows depend on each other: each has the right distribution, but rows are copies, pairs, or share noise.

    measure_dependence(batches, distribution) -> log e-value, and where it is largest

Rows are taken in the order in which they were drawn, and, with several prompts, also prompt by prompt. For each lag d
and each pair of rows (i, j = i + d) two products are summed over positions t, both with mean zero given everything
before row j's token t, if that token has the target's distribution p:

    ranks       r_i r_j, where r is the token's mid-rank under its distribution less 1/2: copies, and antithetic noise
    agreement   1[x_j = x_i] - p(x_i): copies, in any order of tokens

So each sum S is a martingale with a known predictable variance V and steps of at most b, and exp(c S - (exp(c b) - 1 -
c b) V / b^2) is a supermartingale for any c > 0 (Freedman 1975). Averaged over c, signs, lags, orders and the two
statistics it is an e-value: P(it ever reaches 1 / alpha) <= alpha, at any size, for any distribution, whenever sampling
stops.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from parity_certify.calls import Batch
from parity_certify.distributions import Distribution, count_prefixes

LAGS = (1, 64)  # the smallest and the largest distance of two rows that are compared
MAX_ROWS = 60_000  # this many rows are tested: enough to find a share of copies of one in fifty
RATES = 2.0 ** np.arange(-9, 4)  # values of c, see the head of this module


class Dependence(NamedTuple):
    """Evidence against independence, and the statistic, order and lag with the most of it."""

    log_e: float
    name: str
    detectable: float  # share of rows that are copies, at one lag, that would have been found


def compute_log_terms(total: float, variance: float, step: float) -> np.ndarray:
    """Compute the logarithms of the supermartingales of one sum S = `total` of variance V and steps of at most b =
    `step`, for each rate of RATES and each sign [2 R]."""
    price = (np.expm1(RATES * step) - RATES * step) / step**2 * variance
    return np.concatenate([RATES * total - price, -RATES * total - price])


def measure_dependence(batches: Sequence[Batch], distribution: Distribution, limit: int = MAX_ROWS) -> Dependence:
    """Measure the evidence that rows depend on each other, over all lags and orders, in the first `limit` rows."""
    prompts = np.concatenate([b.prompts for b in batches])[:limit]
    tokens = np.concatenate([b.tokens for b in batches])[:limit].astype(np.int64)
    n, L, V = len(prompts), distribution.length, distribution.vocab
    context = prompts[:, None], np.zeros((n, L), dtype=np.int64)  # prompt and prefix of each token index the tables
    code = np.zeros(n, dtype=np.int64)
    for t in range(L):
        context[1][:, t] = count_prefixes(V, t) + code
        code = code * V + tokens[:, t]
    rank = (distribution.tables.cumsum(-1) - distribution.tables / 2 - 0.5)[(*context, tokens)]
    spread = ((1 - (distribution.tables**3).sum(-1)) / 12)[context]  # variance of a mid-rank
    orders = {"rows": np.arange(n)}
    if len(np.unique(prompts)) > 1:
        orders["rows of a prompt"] = np.argsort(prompts, kind="stable")
    terms: dict[str, np.ndarray] = {}
    for (order, rows), lag in itertools.product(orders.items(), range(LAGS[0], min(LAGS[1], n - 1) + 1)):
        i, j = rows[:-lag], rows[lag:]
        if order != "rows":
            i, j = i[prompts[i] == prompts[j]], j[prompts[i] == prompts[j]]
        chance = distribution.tables[context[0][j], context[1][j], tokens[i]]
        ranks = (rank[i] * rank[j]).sum(), (rank[i] ** 2 * spread[j]).sum()
        agreement = ((tokens[i] == tokens[j]) - chance).sum(), (chance * (1 - chance)).sum()
        terms[f"ranks, {order} {lag} apart"] = compute_log_terms(*ranks, step=0.25)
        terms[f"agreement, {order} {lag} apart"] = compute_log_terms(*agreement, step=1.0)
    if not terms:
        return Dependence(0.0, "", 1.0)
    logs = np.concatenate(list(terms.values()))
    free = max(1.0, float((spread / spread.max()).sum())) if spread.max() > 0 else 1.0  # positions that can vary
    detectable = min(1.0, (math.sqrt(2 * math.log(len(logs) * 4 / 0.05)) + 0.84) / math.sqrt(free))
    log_e = float(special.logsumexp(logs) - math.log(len(logs)))
    return Dependence(log_e, max(terms, key=lambda name: terms[name].max()), detectable)


def has_dependent_rows(batches: Sequence[Batch], distribution: Distribution) -> bool:
    """Return whether the evidence against independence exceeds that of nine shuffles by far more than they differ: if
    only the distribution of single rows is wrong, shuffled rows give as much."""
    limit = MAX_ROWS // 4  # enough rows for this answer, which takes ten tests
    prompts = np.concatenate([b.prompts for b in batches])[:limit]
    tokens = np.concatenate([b.tokens for b in batches])[:limit]
    rng = np.random.default_rng(0)
    shuffles = (rng.permutation(len(prompts)) for _ in range(9))
    shuffled = [measure_dependence([Batch(prompts[rows], tokens[rows])], distribution).log_e for rows in shuffles]
    gap = max(math.log(20), 2 * (max(shuffled) - min(shuffled)))
    return measure_dependence(batches, distribution, limit).log_e > max(shuffled) + gap
