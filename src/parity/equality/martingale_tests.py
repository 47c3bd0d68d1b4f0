"""Tests of long sequences: projections whose distribution is known where the joint cannot be enumerated.

Given the past, 1[x = v] - p(v) has mean zero and the covariance diag(p) - p p', so its sum over the tokens of a context
(what is known before x is drawn) is normal with the sum of these covariances: a martingale central limit (Hall & Heyde
1980, thm. 3.2), in which every token counts. Contexts share no token, so their chi-squares add.

    positions      by position: finds faults at one position, also the last
    transitions    by the token before, in eight parts of the sequence: finds faults that begin late
    distances      by the token at each distance before: finds faulty long-range dependence, and reused noise
    slots          by place in the run of its pass, where that is known before the token is drawn, and with the token
                   before: finds faults at the borders of a window
    likelihood     the mean of log p(x), and the spread of its sum over a sequence
    correlations   log p(x) with itself at each distance
    agreement      whether any two sequences of a batch of a run's size agree more often than independent ones do
    noise          whether a random number is read in two rows or at two places (parity.equality.targets.long)
    rows           whether neighbouring sequences agree as often as independent ones do
    pairs          counts of any two tokens of a sequence, against their distribution

A test of many tables is their smallest p times their number. A token of probability zero rejects by itself.

Shapes of arguments: tokens [n, L]; p [n, L, V], the distribution of each token given the past; is_drawn [n, L] bool,
tokens that no grammar forces and no prompt holds (p is zero elsewhere); free [L], positions where a row has such a
token. `columns` of a row name its model and sample.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from scipy import optimize, special, stats

LEAST = 20.0  # least variance of a token's count for the normal limit to hold; rarer tokens are pooled
CELL = 40.0  # least expected count of a cell of two tokens; this many, because the smallest p of 2,000 tables is tested
PARTS = 8
TESTS = (
    "positions", "slots", "transitions", "distances", "likelihood", "likelihood spread", "correlations", "rows",
    "pairs", "batches", "agreement", "noise", "order", "PIT", "support",
)  # fmt: skip


class Tables(NamedTuple):
    """One entry per table [T]."""

    chi2: np.ndarray
    df: np.ndarray  # degrees of freedom of the table's chi-square
    tv: np.ndarray  # total variation per token between counts and distributions, averaged over contexts
    weight: np.ndarray  # tokens times the inverse probabilities of the two likeliest, see `compute_detectable_tv`


def multiply_pairs(p: np.ndarray) -> np.ndarray:
    """Compute the upper triangle of p p' [..., V (V + 1) / 2] of distributions [..., V]."""
    i, j = np.triu_indices(p.shape[-1])
    return p[..., i] * p[..., j]


def encode_one_hot(tokens: np.ndarray, V: int) -> np.ndarray:
    """Encode tokens [...] as indicators [..., V], float32: their products add up exactly to 2^24."""
    return (tokens[..., None] == np.arange(V)).astype(np.float32)


def sum_by_earlier_token(tokens: np.ndarray, p: np.ndarray, is_drawn: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sum over rows, for every two positions i < j and by the token at i: tokens at j [L, V, L, V], their
    distributions, and `multiply_pairs` of these; only where the token at j is drawn. One product of matrices for 16
    positions."""
    n, L, V = p.shape
    indicators = encode_one_hot(tokens, V)
    probs = p.astype(np.float32)
    terms = np.concatenate([indicators, probs, multiply_pairs(probs)], 2) * is_drawn[..., None].astype(np.float32)
    result = np.zeros((L, V, L, terms.shape[2]))
    for i in range(0, L, 16):
        sums = indicators[:, i : i + 16].reshape(n, -1).T @ terms[:, i:].reshape(n, -1)
        result[i : i + 16, :, i:] = sums.reshape(-1, V, L - i, terms.shape[2])
    return result[..., :V], result[..., V : 2 * V], result[..., 2 * V :]


def add_contexts(sums: Sequence[np.ndarray], table: np.ndarray) -> Tables:
    """Compute the chi-squares of C contexts and add them up to their tables, numbered by table [C].

    sums  counts [C, V], sums of distributions, and sums of `multiply_pairs` of distributions

    In a context, tokens of too small a variance, and the rarest of the others, are one cell together, whose count the
    others' give. Contexts without degrees of freedom do not count.
    """
    counts, mean, square = sums
    C, V = counts.shape
    i, j = np.triu_indices(V)
    covariance = np.zeros((C, V, V))
    covariance[:, i, j] = -square
    covariance[:, j, i] = -square
    covariance[:, np.arange(V), np.arange(V)] += mean
    variance = np.einsum("cvv->cv", covariance)
    is_single = variance >= LEAST
    is_single[np.arange(C), np.where(is_single, variance, np.inf).argmin(1)] = False
    matrix = np.where(is_single[:, :, None] & is_single[:, None, :], covariance, np.eye(V))
    excess = np.where(is_single, counts - mean, 0)
    chi2 = (excess * np.linalg.solve(matrix, excess[..., None])[..., 0]).sum(1)
    df = is_single.sum(1)
    n_tokens = counts.sum(1)
    likely = np.sort(mean / np.maximum(n_tokens, 1)[:, None], 1)[:, -2:]
    weight = np.where(df > 0, n_tokens * (1 / np.maximum(likely, 1e-9)).sum(1), 0)
    moved = np.where(df > 0, 0.5 * np.abs(counts - mean).sum(1), 0)
    chi2, df, moved, weight, n_tokens = (
        np.bincount(table, x) for x in (chi2, df, moved, weight, np.where(df > 0, n_tokens, 0))
    )
    return Tables(chi2, df, moved / np.maximum(n_tokens, 1), weight)


@cache
def find_noncentrality(df: float, level: float) -> float:
    """Find the noncentrality at which a chi-square of `df` is rejected with probability POWER at a level."""
    limit = stats.chi2.isf(level, df)

    def compute_surplus(noncentrality: float) -> float:
        return float(stats.ncx2.sf(limit, df, noncentrality)) - R.POWER

    return float(optimize.brentq(compute_surplus, 1e-6, 1e6))


def compute_detectable_tv(t: Tables) -> float:
    """Compute the smallest total variation per token that the largest table finds with probability POWER at its
    corrected level, if that share of each distribution moves from one likely token to another."""
    best = int(t.weight.argmax())
    level = R.get_alpha() / max(1, int((t.df > 0).sum()))
    return math.sqrt(find_noncentrality(float(t.df[best]), level) / t.weight[best])


def compute_detectable_z(error: float, tests: int = 1) -> float:
    """Compute the smallest effect that the largest of `tests` two-sided z-tests finds with probability POWER at the
    Bonferroni-corrected level, if its estimate has the standard error `error`."""
    return float((special.ndtri(R.POWER) - special.ndtri(R.get_alpha() / 2 / tests)) * error)


def make_table_row(layer: str, test: str, n: int, t: Tables, names: Callable[[int], str], **columns: Any) -> Row:
    """Make the result row of a test of many tables: its p-value is the smallest one's times their number, and the note
    names that table by names(index). n: number of tokens. A row "not run" if no table has degrees of freedom."""
    has_freedom = t.df > 0
    if not has_freedom.any():
        return R.make_not_run_row(layer, test, n, f"tokens that vary by {LEAST:g}", **columns)
    p = np.where(has_freedom, special.chdtrc(np.maximum(t.df, 1), t.chi2), 1.0)
    best = int(p.argmin())
    T = int(has_freedom.sum())
    note = f"least of {T}: {names(best)}" if T > 1 else ""
    values = {"statistic": t.chi2[best], "effect": t.tv[best], "minimum_detectable_effect": compute_detectable_tv(t)}
    return R.make_row(layer, test, n, p_value=min(1.0, T * float(p[best])), note=note, **values, **columns)


def make_z_row(layer: str, test: str, n: int, z: np.ndarray, names: Callable[[int], str], **values: Any) -> Row:
    """Make the result row of a test of z-scores [T], two-sided: its p-value is the smallest one's times T, and the note
    names that score by names(index). n: number of tokens; `values`: further columns, such as the effect."""
    p = 2 * special.ndtr(-np.abs(z))
    best = int(p.argmin())
    note = f"least of {len(z)}: {names(best)}" if len(z) > 1 else ""
    return R.make_row(layer, test, n, p_value=min(1.0, len(z) * float(p[best])), statistic=z[best], note=note, **values)


def make_slot_row(
    layer: str, tokens: np.ndarray, slot: np.ndarray, terms: Sequence[np.ndarray], free: np.ndarray, **columns: Any
) -> Row:
    """Test the tokens of every slot, slot [n, L] of each token in its pass, and those of every slot and token before.

    terms  [n, L, ...] each: one-hot tokens, distributions and their `multiply_pairs`; zero where nothing is drawn
    """
    V, S = terms[0].shape[2], int(slot.max()) + 1
    token_before = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
    context = (slot * V + token_before)[:, free].ravel()
    order, present = np.argsort(context, kind="stable"), np.unique(context)
    starts = np.searchsorted(context[order], present)
    by_token = []  # for each term, its sums [S V, ...] by slot and token before
    for x in terms:
        sums = np.zeros((S * V, x.shape[2]))
        sums[present] = np.add.reduceat(x[:, free].reshape(len(context), -1)[order], starts, 0)
        by_token.append(sums)
    slots = add_contexts([x.reshape(S, V, -1).sum(1) for x in by_token], np.arange(S))
    slots_by_token = add_contexts(by_token, np.repeat(np.arange(S), V))
    t = Tables(*(np.concatenate(x) for x in zip(slots, slots_by_token, strict=True)))
    return make_table_row(
        layer, "slots", len(context), t, lambda i: f"slot {i % S}" + ", by token" * (i >= S), **columns
    )


def make_context_rows(
    layer: str,
    tokens: np.ndarray,
    p: np.ndarray,
    is_drawn: np.ndarray,
    slot: np.ndarray | None,
    skip_pairs: bool,
    **columns: Any,
) -> list[Row]:
    """Make the rows of positions, slots (if slot [n, L] is given), transitions and, unless `skip_pairs`, distances."""
    L, V = p.shape[1:]
    free, count = np.asarray(is_drawn.any(0)), int(is_drawn.sum())
    rows = []

    def add_row(test: str, sums: Sequence[np.ndarray], table: np.ndarray, names: Callable[[int], str]) -> None:
        rows.append(make_table_row(layer, test, count, add_contexts(sums, table), names, **columns))

    indicators = encode_one_hot(tokens, V)
    terms = (indicators * is_drawn[..., None], p, multiply_pairs(p))
    positions = np.flatnonzero(free)
    sums = [x[:, free].sum(0) for x in terms]
    add_row("positions", sums, np.arange(len(positions)), lambda i: f"position {positions[i]}")
    if slot is not None:
        rows.append(make_slot_row(layer, tokens, slot, terms, free, **columns))
    part_of = np.arange(L - 1) * PARTS // (L - 1)
    token_before = indicators[:, :-1].astype(float)
    parts = [part_of == k for k in range(PARTS)]
    sums = [
        np.concatenate([np.tensordot(token_before[:, k], x[:, 1:][:, k], ([0, 1], [0, 1])) for k in parts])
        for x in terms
    ]
    add_row("transitions", sums, np.repeat(np.arange(PARTS), V), lambda i: f"part {i + 1} of {PARTS}")
    if not skip_pairs:
        i = np.arange(L)
        sums = [  # for each term, its sums [(L - 1) V, ...] by distance and earlier token
            np.concatenate([x[i[:-d], :, i[d:]].sum(0) for d in range(1, L)])
            for x in sum_by_earlier_token(tokens, p, is_drawn)
        ]
        add_row("distances", sums, np.repeat(np.arange(L - 1), V), lambda i: f"distance {i + 1}")
    return rows


def compute_log_scores(tokens: np.ndarray, p: np.ndarray, is_drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute log p(x) of each token less its expectation given the past, and its variance, both [n, L]; zero where
    nothing is drawn."""
    logs = np.log(np.where(p > 0, p, 1))
    entropy = -(p * logs).sum(2)
    variance = np.where(is_drawn, (p * logs**2).sum(2) - entropy**2, 0)
    log_p = np.take_along_axis(logs, tokens[..., None], 2)[..., 0]
    return np.where(is_drawn, log_p + entropy, 0), variance


def sum_products(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sum x[:, i] * y[:, i + d] of x, y [n, L] over rows and positions i, for each distance d from 1 to L - 1: [L - 1].
    By Fourier transforms, in time and memory that grow with L hardly faster than the data do."""
    L = x.shape[1]
    transforms = (np.fft.rfft(z, 2 * L, axis=1) for z in (x, y))
    of_x, of_y = transforms
    return np.fft.irfft((of_x.conj() * of_y).sum(0), 2 * L)[1:L]


def make_log_p_rows(layer: str, score: np.ndarray, variance: np.ndarray, count: int, **columns: Any) -> list[Row]:
    """Make three rows that test log p less its mean, score [n, L] of variance [n, L]: its mean over all `count` drawn
    tokens, the spread of its sum over sequences, and its correlation with itself at every distance."""
    L = score.shape[1]
    of_sequence, expected = score.sum(1), variance.sum(1)
    error = math.sqrt(expected.sum()) / count
    z = np.array([of_sequence.sum() / count / error])
    effect = abs(of_sequence.sum()) / count
    values = {"effect": effect, "minimum_detectable_effect": compute_detectable_z(error), **columns}
    rows = [make_z_row(layer, "likelihood", count, z, str, **values)]
    rows.append(make_spread_row(layer, of_sequence, expected, **columns))
    products = sum_products(score, score)
    errors = np.sqrt(sum_products(score**2, variance).clip(min=0))
    scale = variance.sum(0)[::-1].cumsum()[L - 2 :: -1]  # products divided by these variances are correlations
    is_normal = errors > math.sqrt(LEAST) * variance.max()
    z = np.where(is_normal, products / np.maximum(errors, 1e-9), 0.0)
    best = int(np.abs(z).argmax())
    limit = None
    if is_normal.any():
        error = float((errors / np.maximum(scale, 1e-9))[is_normal].min())
        limit = compute_detectable_z(error, int(is_normal.sum()))
    values = {"effect": abs(products[best]) / max(scale[best], 1e-9), "minimum_detectable_effect": limit, **columns}
    return [*rows, make_z_row(layer, "correlations", count, z, lambda i: f"distance {i + 1}", **values)]


def make_spread_row(layer: str, sums: np.ndarray, expected: np.ndarray, **columns: Any) -> Row:
    """Test whether sums [n] with mean zero have the variances `expected` [n], which depend on what was drawn. Squares
    are skewed, so the t of a hundred sequences is far from normal; Hall's transformation (1992, J. R. Stat. Soc. B 54)
    corrects it."""
    excess = sums**2 - expected
    n, scale = len(excess), float(excess.std())
    t, skew = excess.mean() / scale, float(stats.skew(excess))
    z = math.sqrt(n) * (t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / (6 * n))
    values = {"statistic": z, "effect": abs(excess.sum() / expected.sum()), **columns}
    values["minimum_detectable_effect"] = compute_detectable_z(scale * math.sqrt(n) / expected.sum())
    return R.make_row(layer, "likelihood spread", n, p_value=2 * float(stats.t.sf(abs(z), n - 1)), **values)


def make_neighbour_row(layer: str, tokens: np.ndarray, p: np.ndarray, is_drawn: np.ndarray, **columns: Any) -> Row:
    """Test by two z-scores whether sequences next to each other agree as often as independent ones do: the 1st with the
    2nd, the 3rd with the 4th, ..., and the 2nd with the 3rd, ...: pairs that share a sequence are not independent."""
    free = is_drawn.any(0)
    moves, errors = [], []
    for first in range(2):
        half, next_half = ([x[k::2][:, free] for x in (tokens, p, is_drawn)] for k in (first, first + 1))
        m = min(len(half[0]), len(next_half[0]))
        (a, p_a, drawn_a), (b, p_b, drawn_b) = ([x[:m] for x in rows] for rows in (half, next_half))
        both_drawn = drawn_a & drawn_b
        expected = np.einsum("nlv,nlv->nl", p_a, p_b)
        errors.append(math.sqrt((expected * (1 - expected)).sum()) / both_drawn.sum())
        moves.append(float((((a == b) & both_drawn) - expected).sum() / both_drawn.sum()))
    limit = compute_detectable_z(max(errors), 2)
    values = {"effect": max(map(abs, moves)), "minimum_detectable_effect": limit, **columns}
    z = np.array(moves) / np.array(errors)
    return make_z_row(layer, "rows", int(is_drawn.sum()) // 2, z, lambda i: f"half {i + 1}", **values)


def make_agreement_row(
    layer: str, tokens: np.ndarray, p: np.ndarray, is_known: np.ndarray, size: int, **columns: Any
) -> Row:
    """Test whether any two sequences of one batch of `size` agree more often than independent ones do.

    For a pair that agrees at S of its tokens, where sum p_a . p_b were expected given the past, 2^S exp(-expected) is
    an e-value (a supermartingale). So is the mean over all pairs, and its inverse is a p-value (Ville 1939).
    """
    is_drawn = find_drawn(p, is_known)
    logs, largest, n_compared, total_expected = [], 0.0, 0, 0.0
    for start in range(0, len(tokens) - 1, size):
        x, probs, drawn = (a[start : start + size] for a in (tokens, p, is_drawn))
        a, b = np.triu_indices(len(x), 1)
        both_drawn = drawn[a] & drawn[b]
        agree = ((x[a] == x[b]) & both_drawn).sum(1)
        dots = np.einsum("alv,blv->abl", probs, probs, optimize=True)[a, b]
        expected = (dots * both_drawn).sum(1)
        logs.append(agree * math.log(2) - expected)
        total_expected += float(expected.sum())
        n_compared += int(both_drawn.sum())
        largest = max(largest, float(((agree - expected) / np.maximum(both_drawn.sum(1), 1)).max()))
    log_e = np.concatenate(logs)
    n_pairs = len(log_e)
    p_value = min(1.0, math.exp(-float(special.logsumexp(log_e) - math.log(n_pairs))))
    mean_expected = total_expected / n_pairs
    of_one_pair = (math.log(n_pairs / R.get_alpha()) + mean_expected) / math.log(2) - mean_expected
    values = {"effect": largest, "minimum_detectable_effect": of_one_pair * n_pairs / max(n_compared, 1), **columns}
    note = f"{n_pairs} pairs of sequences, in batches of {size}"
    return R.make_row(layer, "agreement", n_compared, p_value=p_value, note=note, **values)


def make_pair_row(layer: str, tokens: np.ndarray, pair_probs: np.ndarray, free: np.ndarray, **columns: Any) -> Row:
    """Test the counts of every two free positions' tokens by chi-squares against pair_probs [L, V, L, V]; cells that
    expect fewer than CELL are pooled into one."""
    n, L = tokens.shape
    V = pair_probs.shape[1]
    indicators = encode_one_hot(tokens, V).reshape(n, -1)
    counts = (indicators.T @ indicators).astype(float).reshape(L, V, L, V)
    i, j = np.triu_indices(L, 1)
    both_free = free[i] & free[j]
    i, j = i[both_free], j[both_free]
    drawn, mean = (x[i, :, j].reshape(len(i), V * V) for x in (counts, n * pair_probs))
    is_pooled = mean < CELL
    is_small = np.where(is_pooled, mean, 0).sum(1) < CELL  # the pool takes the smallest other cell too
    smallest = np.where(is_pooled, np.inf, mean).argmin(1)
    is_pooled[np.arange(len(is_pooled))[is_small], smallest[is_small]] = True
    pooled_drawn, pooled_mean = (np.where(is_pooled, x, 0).sum(1, keepdims=True) for x in (drawn, mean))
    cells = np.concatenate([np.where(is_pooled, 0, drawn), pooled_drawn], 1)
    cell_means = np.concatenate([np.where(is_pooled, 0, mean), pooled_mean], 1)
    chi2 = ((cells - cell_means) ** 2 / np.where(cell_means > 0, cell_means, np.inf)).sum(1)
    df = (cell_means > 0).sum(1) - 1
    top = np.sort(np.where(is_pooled, 0, mean), 1)[:, -2:]
    top = np.where(top > 0, top, np.maximum(pooled_mean, CELL))  # the pool counts if one cell is likely
    weight = np.where(df > 0, n**2 * (1 / top).sum(1), 0)
    t = Tables(chi2, df, 0.5 * np.abs(cells - cell_means).sum(1) / n, weight)
    return make_table_row(layer, "pairs", n, t, lambda k: f"positions {i[k]} and {j[k]}", **columns)


def make_support_row(layer: str, is_impossible: np.ndarray, **columns: Any) -> Row:
    """Make the row that rejects because tokens of probability zero were drawn, those of is_impossible [n, L] bool."""
    note = f"{int(is_impossible.sum())} of {is_impossible.size} tokens have probability zero"
    values = {"effect": float(is_impossible.mean()), "p_value": R.SMALLEST, "note": note, **columns}
    return R.make_row(layer, "support", is_impossible.size, **values)


def find_drawn(p: np.ndarray, is_known: np.ndarray) -> np.ndarray:
    """Find the tokens, [n, L] bool, that are not in the prompt, `is_known` [n, L], and not forced by a grammar, whose
    distribution p [n, L, V] is certain in all rows."""
    return ~is_known & ~((p.max(2) == 1) | is_known).all(0)


def make_sequence_rows(
    layer: str,
    tokens: np.ndarray,
    p: np.ndarray,
    pair_probs: np.ndarray | None,
    slot: np.ndarray | None,
    is_known: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray] | None,
    skip_pairs: bool = False,
    **columns: Any,
) -> list[Row]:
    """Make a result row for each test that can be run on tokens [n, L] with distributions p [n, L, V].

    pair_probs    [L, V, L, V] distribution of any two tokens, whatever stands between them, where it can be computed
    slot        [n, L] slot of each token in its pass, for decoders where it is known before the token is drawn
    is_known    [n, L] tokens of the prompt, which are not tested and only serve as contexts. p is given them all
    scores      log p less its mean and its variance [n, L], where they are not those of p: p is then the distribution
                of parts of a density's range
    skip_pairs  leaves out the tests of every pair of positions, whose number grows with the square of the length
    """
    is_impossible = (np.take_along_axis(p, tokens[..., None], 2)[..., 0] == 0) & ~is_known
    is_drawn = find_drawn(p, is_known)
    p = np.where(is_drawn[..., None], p, 0)
    scores = scores or compute_log_scores(tokens, p, is_drawn)
    rows = [
        *make_context_rows(layer, tokens, p, is_drawn, slot, skip_pairs, **columns),
        *make_log_p_rows(layer, *scores, int(is_drawn.sum()), **columns),
        make_neighbour_row(layer, tokens, p, is_drawn, **columns),
    ]
    if pair_probs is not None:
        rows.append(make_pair_row(layer, tokens, pair_probs, np.asarray(is_drawn.any(0)), **columns))
    if is_impossible.any():
        rows.append(make_support_row(layer, is_impossible, **columns))
    return rows
