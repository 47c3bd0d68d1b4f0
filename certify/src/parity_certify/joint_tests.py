"""Statistics of token sequences against their exact joint distribution: what the exact layer and the injected faults
share.

counts  [R, K] how often each of the K = V^L sequences was drawn in each of R runs of n draws, first token most
        significant; the number of a sequence in this order is its code
distribution     [K]    the exact joint

Every null distribution is simulated: B multinomial draws of n from `distribution`, so sizes are right on sparse tables
and under the dependence of overlapping tables. Four statistics, none of which dominates (each is large when the
distribution is wrong):

    joint G           likelihood ratio over all cells; diffuse faults
    Valiant-Valiant   sum ((c - n p)^2 - c) / p^(2/3) (Valiant & Valiant 2017); faults in rare cells
    pairs             smallest of the chi-square p-values of all position pairs; long-range faults
    conditionals      Fisher's sum over (position, token before it) of chi-square p-values; local faults

`all four` is the smallest of their p-values, its null from the same draws (Westfall & Young 1993).
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_certify.seeding import derive_row_key

TESTS = ("joint G", "Valiant-Valiant", "pairs", "conditionals")
POOL = 5.0  # cells of pair and conditional tables that expect fewer draws than this are pooled
CONCENTRATIONS = (1e2, 1e3, 1e4, 1e5)


class Tables(NamedTuple):
    """Pooled pair and conditional tables as one linear map from the joint counts. Built for one n."""

    distribution: np.ndarray  # [K]
    n: int
    fold: np.ndarray  # [K, M] 0/1: which pooled cell a sequence falls in, table after table
    share: np.ndarray  # [M] distribution of a pooled cell within its table
    starts: np.ndarray  # [T] first column of each table
    df: np.ndarray  # [T] degrees of freedom
    pairs: int  # how many tables, the first ones, are of pairs; the others are of conditionals


def digits(vocab: int, length: int) -> np.ndarray:
    """Enumerate the K = V^L sequences [K, L] in the order of their codes, first token most significant."""
    return np.array(list(itertools.product(range(vocab), repeat=length)))


def pool_cells(expected: np.ndarray, minimum: float = POOL) -> np.ndarray:
    """Merge the smallest cells of a table, which expect this many draws [m], until all groups expect `minimum`; return
    the group of each cell [m], -1 where none is expected."""
    order = np.argsort(expected, kind="stable")
    order = order[expected[order] > 0]
    group = np.full(len(expected), -1)
    mass = np.cumsum(expected[order])
    larger = np.append(expected[order][1:], np.inf)  # the size of the next larger cell
    merged = int(np.argmax((mass >= minimum) & (larger >= minimum))) if (mass >= minimum).any() else len(order) - 1
    group[order] = np.maximum(np.arange(len(order)) - merged, 0)
    return group


def make_tables(distribution: np.ndarray, vocab: int, length: int, n: int) -> Tables:
    """Build the tables of position pairs and of (position, previous token) from a joint distribution, pooled for n
    draws."""
    cells = digits(vocab, length)
    folds, shares, df, pairs = [], [], [], 0

    def add_table(code: np.ndarray, rows: np.ndarray) -> bool:
        """Add the table of a code of each sequence, code [K] below V^2, over the sequences in `rows` [K] bool. Returns
        False, without adding it, if pooling leaves one cell."""
        mass = np.bincount(code[rows], distribution[rows], vocab**2)
        group = pool_cells(n * mass)
        if group.max() < 1:
            return False
        folds.append((group[code][:, None] == np.arange(group.max() + 1)) & rows[:, None])
        shares.append(np.bincount(group[group >= 0], mass[group >= 0]) / mass.sum())
        df.append(group.max())
        return True

    all_rows = np.ones(len(cells), bool)
    for i, j in itertools.combinations(range(length), 2):
        pairs += add_table(cells[:, i] * vocab + cells[:, j], all_rows)
    add_table(cells[:, 0], all_rows)
    for i in range(1, length):
        for previous in range(vocab):
            add_table(cells[:, i], cells[:, i - 1] == previous)
    if not folds:
        return Tables(
            distribution, n, np.zeros((len(distribution), 0)), np.zeros(0), np.zeros(0, int), np.zeros(0, int), 0
        )
    starts = np.cumsum([0] + [f.shape[1] for f in folds[:-1]])
    return Tables(
        distribution, n, np.concatenate(folds, 1).astype(float), np.concatenate(shares), starts, np.array(df), pairs
    )


def compute_statistics(counts: np.ndarray, t: Tables) -> np.ndarray:
    """Compute the statistics of TESTS [R, 4] of counts [R, K]; infinite where an impossible sequence was drawn."""
    c = counts.astype(float)
    possible = t.distribution > 0
    expected = t.n * t.distribution[possible]
    joint = 2 * special.xlogy(c[:, possible], c[:, possible] / expected).sum(1)
    valiant = (((c[:, possible] - expected) ** 2 - c[:, possible]) / t.distribution[possible] ** (2 / 3)).sum(1)
    cell = c @ t.fold
    if not len(t.starts):
        pairs = conditionals = np.zeros(len(c))
    else:
        total = np.add.reduceat(cell, t.starts, 1)
        width = np.diff(np.append(t.starts, cell.shape[1]))
        mean = np.maximum(np.repeat(total, width, 1) * t.share, np.finfo(float).tiny)
        chi2 = np.add.reduceat((cell - mean) ** 2 / mean, t.starts, 1)
        log_p = np.log(np.maximum(special.chdtrc(t.df, chi2), R.SMALLEST))
        pairs = -log_p[:, : t.pairs].min(1, initial=0)
        conditionals = -2 * log_p[:, t.pairs :].sum(1)
    result = np.stack([joint, valiant, pairs, conditionals], 1)
    result[c[:, ~possible].any(1)] = np.inf
    return result


def simulate_null(t: Tables, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Simulate the four statistics [draws, 4] of runs of t.n sequences from the distribution itself."""
    distribution = t.distribution / t.distribution.sum()
    sizes = [min(2000, draws - b) for b in range(0, draws, 2000)]
    return np.concatenate([compute_statistics(rng.multinomial(t.n, distribution, size=size), t) for size in sizes])


def compute_p_values(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Compute Monte-Carlo p-values [R, 5] of the four statistics of R runs [R, 4], and of the smallest of the four. The
    null draws are [B, 4]. The smallest p-value is compared with that of every null draw, ranked among the other draws
    and the observed one: all 1 + B are exchangeable."""
    draws = len(null)
    columns = zip(np.sort(null, 0).T, null.T, strict=True)
    rank = np.stack([draws - np.searchsorted(o, column) for o, column in columns], 1)  # [B, 4] null draws >= draw b
    result = np.empty((len(observed), 5))
    for r, one in enumerate(observed):
        p = (1 + (null >= one).sum(0)) / (1 + draws)
        null_p = ((rank + (one >= null)) / (1 + draws)).min(1)
        result[r] = [*p, (1 + (null_p <= p.min() + 1e-12).sum()) / (1 + draws)]
    return result


def compute_tv(counts: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """Compute the TV [...] between the empirical distribution of counts [..., K] and `distribution` [K]."""
    return 0.5 * np.abs(counts / counts.sum(-1, keepdims=True) - distribution).sum(-1)


def bound_tv(counts: np.ndarray, distribution: np.ndarray, alpha: float = R.ALPHA) -> float:
    """Bound the TV from above; this fails with probability alpha at most, for any distribution: TV <= E TVhat (Jensen),
    and one draw moves TVhat by at most 1/n, so E TVhat <= TVhat + sqrt(ln(1/alpha) / 2n) (McDiarmid)."""
    return float(compute_tv(counts, distribution) + math.sqrt(math.log(1 / alpha) / (2 * counts.sum())))


def compute_tv_interval(counts: np.ndarray, distribution: np.ndarray, alpha: float = R.ALPHA) -> tuple[float, float]:
    """Compute an interval of the TV that fails with probability alpha at most; low end: E TVhat <= TV + sqrt((K - 1) /
    n) / 2 with K possible cells, high end: `bound_tv`."""
    n = counts.sum()
    cells = np.count_nonzero((distribution > 0) | (counts > 0))
    low = compute_tv(counts, distribution) - math.sqrt(math.log(2 / alpha) / (2 * n)) - 0.5 * math.sqrt((cells - 1) / n)
    return max(0.0, float(low)), min(1.0, bound_tv(counts, distribution, alpha / 2))


def estimate_tv(counts: np.ndarray, distribution: np.ndarray) -> float:
    """Estimate the TV of counts [K] without the bias of the plug-in TVhat, which noise alone makes larger than 0. Of
    the distributions on the line from `distribution` to the empirical one, it is the TV of the one whose expected TVhat
    equals the observed one. A cell's deviation is taken as normal."""
    n = counts.sum()
    gap = counts / n - distribution
    observed = float(compute_tv(counts, distribution))

    def expect_tv(share: float) -> float:
        """Compute the expected TVhat of the distribution that lies `share` of the way to the empirical one."""
        mean = share * np.abs(gap)
        p = np.clip(distribution + share * gap, 0, 1)
        scale = np.maximum(np.sqrt(p * (1 - p) / n), np.finfo(float).tiny)
        z = mean / scale
        folded = scale * math.sqrt(2 / math.pi) * np.exp(-(z**2) / 2) + mean * special.erf(z / math.sqrt(2))
        return float(0.5 * folded.sum())

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expect_tv(middle) < observed else (low, middle)
    return low * observed


def compute_log_e(counts: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """Compute the logarithm of the Dirichlet-multinomial e-value of counts [..., K] (Lindon & Malek 2022). E = B(a + c)
    / B(a) / prod p^c with a = concentration * p, averaged over concentrations: a function of the counts alone, so
    shards add in any order. It is a test martingale under the null: P(it ever reaches 1 / alpha) <= alpha (Ville),
    however often it is read, so min(1, 1 / E) is a p-value at any time."""
    if counts[..., distribution <= 0].any():
        return np.full(counts.shape[:-1], np.inf)
    c, p = counts[..., distribution > 0], distribution[distribution > 0]
    n = c.sum(-1)
    logs = [
        special.gammaln(k) - special.gammaln(k + n) + (special.gammaln(k * p + c) - special.gammaln(k * p)).sum(-1)
        for k in CONCENTRATIONS
    ]
    return special.logsumexp(logs, axis=0) - math.log(len(CONCENTRATIONS)) - (c * np.log(p)).sum(-1)


def make_joint_rows(
    layer: str,
    counts: np.ndarray,
    distribution: np.ndarray,
    vocab: int,
    length: int,
    *,
    rng: np.random.Generator,
    draws: int = 9999,
    **values: Any,
) -> list[Row]:
    """Make the rows of one sample, counts [K]: four tests, `all four` (which decides), e-value, TV certificate. Tests
    are not run if n is below the number of possible sequences; where there is only one, any other is a rejection. The
    certificate's column `alpha` is the probability with which its bound, the effect, may fail. draws: of the null."""
    n = int(counts.sum())
    evidence = float(compute_log_e(counts, distribution))
    p_e = 1.0 if evidence <= 0 else math.exp(-min(evidence, 690))
    tv, limit, support = (
        float(compute_tv(counts, distribution)),
        R.compute_detectable_tv(n),
        int((distribution > 0).sum()),
    )
    common = values | {"effect": tv, "minimum_detectable_effect": limit}
    if support == 1:  # with a deterministic target any other sequence is impossible, and nothing is random
        wrong = n - int(counts[distribution > 0].sum())
        needs = "more than one possible sequence"
        rows = [R.make_not_run_row(layer, t, n, needs, **values) for t in (*TESTS, "all four")]
        if wrong:
            rows[-1] = R.make_row(layer, "all four", n, p_value=R.SMALLEST, **common)
    elif n < support:
        rows = [R.make_not_run_row(layer, t, n, f"n >= {support}", **values) for t in (*TESTS, "all four")]
    else:
        t = make_tables(distribution, vocab, length, n)
        observed = compute_statistics(counts[None], t)
        null = simulate_null(t, R.count_null_draws(draws), rng)
        smallest = 1 / (1 + len(null))
        p = compute_p_values(observed, null)[0]
        rows = [
            R.make_row(layer, test, n, statistic=observed[0, k], p_value=p[k], **common | {"decides": False})
            for k, test in enumerate(TESTS)
        ]
        for k, count in ((2, t.pairs), (3, len(t.starts) - t.pairs)):
            if not count:
                rows[k] = R.make_not_run_row(layer, TESTS[k], n, "two cells that expect 5 draws", **values)
        # no null draw as far: p is as small as it can be, and corrections for many decoders may leave it too large. The
        # p-value of the e-value then replaces it, and stays valid, because p is at its smallest so rarely
        decisive = min(p[4], p_e) if p[4] <= smallest else p[4]
        rows.append(R.make_row(layer, "all four", n, statistic=p[:4].min(), p_value=decisive, **common))
    rows.append(R.make_row(layer, "e-value", n, statistic=evidence, p_value=p_e, **common | {"decides": False}))
    alpha = R.get_alpha()
    low, high = compute_tv_interval(counts, distribution, alpha)
    bound = bound_tv(counts, distribution, alpha)
    certificate = R.make_row(layer, "TV certificate", n, statistic=tv, **common | {"effect": bound, "decides": False})
    certificate |= {"verdict": f"TV <= {bound:.4f} ({R.describe_confidence(alpha)})", "alpha": alpha, "cells": support}
    certificate |= {"tv": min(max(estimate_tv(counts, distribution), low), high), "tv_low": low, "tv_high": high}
    return [*rows, certificate]


def make_code_rows(
    layer: str,
    model: str,
    codes: np.ndarray,
    distribution: np.ndarray,
    vocab: int,
    length: int,
    *,
    seed: int,
    draws: int,
) -> list[Row]:
    """Make the rows (see `make_joint_rows`) of sequences, codes [n], that were drawn from a model. The model's name and
    the seed fix the null draws. The note counts sequences of probability zero."""
    counts = np.bincount(codes, minlength=len(distribution))
    impossible = int(counts[distribution == 0].sum())
    note = f"{impossible} of {len(codes)} sequences have probability zero" if impossible else ""
    values = {"model": model, "seed": seed, "note": note}
    rng = np.random.default_rng([seed, derive_row_key(seed, model) % 2**32])
    return make_joint_rows(layer, counts, distribution, vocab, length, rng=rng, draws=draws, **values)
