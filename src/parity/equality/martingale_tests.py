"""Tests of long sequences: projections whose law is known where the joint cannot be enumerated.

Given the past, 1[x = v] - p(v) has mean zero and the covariance diag(p) - p p', so its sum over the tokens of a context
(what is known before x is drawn) is normal with the sum of these covariances: a martingale central limit (Hall & Heyde
1980, thm. 3.2), in which every token counts. Contexts share no token, so their chi-squares add.

    positions      by place: finds faults at one place, also the last
    transitions    by the token before, in eight parts of the sequence: finds faults that begin late
    distances      by the token at each distance before: finds faulty long-range dependence, and reused noise
    slots          by place in the run of its pass, where that is known before the token is drawn, and with the token
                   before: finds faults at the borders of a window
    likelihood     the mean of log p(x), and the spread of its sum over a sequence
    correlations   log p(x) with itself at each distance
    agreement      whether any two sequences of a batch of a run's size agree more often than independent ones do
    noise          whether a random number is read in two rows or at two places (parity.equality.targets.long)
    rows           whether neighbouring sequences agree as often as independent ones do
    pairs          counts of any two tokens of a sequence, against their law

A test of many tables is their smallest p times their number. A token of probability zero rejects by itself.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from scipy import optimize, special, stats

LEAST = 20.0  # variance of a token's count (about its expected number), for the normal limit; rarer ones are pooled
CELL = 40.0  # expected number in a cell of two tokens' table: the smallest p of 2,000 tables is far out in the tail
PARTS = 8
TESTS = (
    "positions", "slots", "transitions", "distances", "likelihood", "likelihood spread", "correlations", "rows",
    "pairs", "batches", "agreement", "noise", "order", "PIT", "support",
)  # fmt: skip


class Tables(NamedTuple):
    """Of each table its chi-square [T], its degrees of freedom, the largest total variation in it per token, and the
    weight from which the smallest total variation that it would find follows (`detectable`)."""

    chi2: np.ndarray
    df: np.ndarray
    moved: np.ndarray
    weight: np.ndarray


def outer(p: np.ndarray) -> np.ndarray:
    """The upper triangle of p p' [..., V (V + 1) / 2] of laws [..., V]."""
    i, j = np.triu_indices(p.shape[-1])
    return p[..., i] * p[..., j]


def hot(tokens: np.ndarray, V: int) -> np.ndarray:
    """Tokens [...] as indicators [..., V], float32: their products add up exactly to 2^24."""
    return (tokens[..., None] == np.arange(V)).astype(np.float32)


def together(tokens: np.ndarray, p: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of every two places i < j, by the token at i: counts of the token at j [L, V, L, V], sums of its laws, and of
    their `outer`; zero at places j that are not asked [n, L]. One product of matrices a few places at a time."""
    n, L, V = p.shape
    one, laws = hot(tokens, V), p.astype(np.float32)
    every = np.concatenate([one, laws, outer(laws)], 2) * asked[..., None].astype(np.float32)
    result = np.zeros((L, V, L, every.shape[2]))
    for begin in range(0, L, 16):
        own = one[:, begin : begin + 16].reshape(n, -1)
        sums = own.T @ every[:, begin:].reshape(n, -1)
        result[begin : begin + 16, :, begin:] = sums.reshape(-1, V, L - begin, every.shape[2])
    return result[..., :V], result[..., V : 2 * V], result[..., 2 * V :]


def fold(each: Sequence[np.ndarray], table: np.ndarray) -> Tables:
    """Chi-squares of C contexts, added up to tables [C]. each: counts [C, V], sums of laws, sums of their `outer`.

    In a context, tokens of too small a variance, and the rarest of the others, are one cell together, whose count the
    others' give. Contexts without degrees of freedom do not count.
    """
    (C, V), (counts, mean, square) = each[0].shape, each
    i, j = np.triu_indices(V)
    covariance = np.zeros((C, V, V))
    covariance[:, i, j] = -square
    covariance[:, j, i] = -square
    covariance[:, np.arange(V), np.arange(V)] += mean
    variance = np.einsum("cvv->cv", covariance)
    single = variance >= LEAST
    single[np.arange(C), np.where(single, variance, np.inf).argmin(1)] = False
    matrix = np.where(single[:, :, None] & single[:, None, :], covariance, np.eye(V))
    excess = np.where(single, counts - mean, 0)
    chi2, df = (excess * np.linalg.solve(matrix, excess[..., None])[..., 0]).sum(1), single.sum(1)
    tokens = counts.sum(1)
    likely = np.sort(mean / np.maximum(tokens, 1)[:, None], 1)[:, -2:]
    weight = np.where(df > 0, tokens * (1 / np.maximum(likely, 1e-9)).sum(1), 0)
    moved = np.where(df > 0, 0.5 * np.abs(counts - mean).sum(1), 0)
    add = [np.bincount(table, w) for w in (chi2, df, moved, weight, np.where(df > 0, tokens, 0))]
    return Tables(add[0], add[1], add[2] / np.maximum(add[4], 1), add[3])


@cache
def noncentrality(df: float, level: float) -> float:
    """The noncentrality of a chi-square of `df` that is rejected with probability POWER at a level."""
    limit = stats.chi2.isf(level, df)

    def lacking(noncentral: float) -> float:
        return float(stats.ncx2.sf(limit, df, noncentral)) - R.POWER

    return float(optimize.brentq(lacking, 1e-6, 1e6))


def detectable(t: Tables) -> float:
    """The smallest total variation per token that the largest table finds with probability POWER at its corrected
    level, if that share of each law moves from one likely token to another."""
    best = int(t.weight.argmax())
    level = R.get_alpha() / max(1, int((t.df > 0).sum()))
    return math.sqrt(noncentrality(float(t.df[best]), level) / t.weight[best])


def smallest(layer: str, test: str, n: int, t: Tables, names: Callable[[int], str], **place: Any) -> Row:
    """The row of a test of many tables; its note names the table of the smallest p."""
    real = t.df > 0
    if not real.any():
        return R.make_not_run_row(layer, test, n, f"tokens that vary by {LEAST:g}", **place)
    p = np.where(real, special.chdtrc(np.maximum(t.df, 1), t.chi2), 1.0)
    best, T = int(p.argmin()), int(real.sum())
    note = f"least of {T}: {names(best)}" if T > 1 else ""
    values = {"statistic": t.chi2[best], "effect": t.moved[best], "minimum_detectable_effect": detectable(t)}
    return R.make_row(layer, test, n, p_value=min(1.0, T * float(p[best])), note=note, **values, **place)


def normal(layer: str, test: str, n: int, z: np.ndarray, names: Callable[[int], str], **values: Any) -> Row:
    """The row of z-scores [T], two-sided; `values` hold its effect."""
    p = 2 * special.ndtr(-np.abs(z))
    best = int(p.argmin())
    note = f"least of {len(z)}: {names(best)}" if len(z) > 1 else ""
    return R.make_row(layer, test, n, p_value=min(1.0, len(z) * float(p[best])), statistic=z[best], note=note, **values)


def detectable_z(error: float, tests: int = 1) -> float:
    """As `result_rows.detectable_z`, of the smallest of several tests."""
    return float((special.ndtri(R.POWER) - special.ndtri(R.get_alpha() / 2 / tests)) * error)


def by_slot(
    layer: str, tokens: np.ndarray, slot: np.ndarray, each: Sequence[np.ndarray], free: np.ndarray, **place: Any
) -> Row:
    """Every slot by itself, and by the token before. each [n, L, ...]: indicators, laws and their `outer`."""
    V, S = each[0].shape[2], int(slot.max()) + 1
    before = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
    own = (slot * V + before)[:, free].ravel()
    order, present = np.argsort(own, kind="stable"), np.unique(own)
    begin, full = np.searchsorted(own[order], present), []
    for x in each:
        sums = np.zeros((S * V, x.shape[2]))
        sums[present] = np.add.reduceat(x[:, free].reshape(len(own), -1)[order], begin, 0)
        full.append(sums)
    alone = fold([x.reshape(S, V, -1).sum(1) for x in full], np.arange(S))
    after = fold(full, np.repeat(np.arange(S), V))
    both = Tables(*(np.concatenate(x) for x in zip(alone, after, strict=True)))
    return smallest(layer, "slots", len(own), both, lambda i: f"slot {i % S}" + ", by token" * (i >= S), **place)


def by_context(
    layer: str, tokens: np.ndarray, p: np.ndarray, asked: np.ndarray, slot: np.ndarray | None, far: bool, **place: Any
) -> list[Row]:
    """The tests of tables, without that of distances where the sequence is too long for it (`far`).
    asked [n, L]: tokens that no grammar forces and no prompt holds; p is zero elsewhere."""
    L, V = p.shape[1:]
    free, count, rows = np.asarray(asked.any(0)), int(asked.sum()), []

    def add(test: str, each: Sequence[np.ndarray], table: np.ndarray, names: Callable[[int], str]) -> None:
        rows.append(smallest(layer, test, count, fold(each, table), names, **place))

    indicators = hot(tokens, V)
    each, where = (indicators * asked[..., None], p, outer(p)), np.flatnonzero(free)
    add("positions", [x[:, free].sum(0) for x in each], np.arange(len(where)), lambda i: f"position {where[i]}")
    if slot is not None:
        rows.append(by_slot(layer, tokens, slot, each, free, **place))
    part, before = np.arange(L - 1) * PARTS // (L - 1), indicators[:, :-1].astype(float)
    in_parts = [
        np.concatenate(
            [np.tensordot(before[:, part == k], x[:, 1:][:, part == k], ([0, 1], [0, 1])) for k in range(PARTS)]
        )
        for x in each
    ]
    add("transitions", in_parts, np.repeat(np.arange(PARTS), V), lambda i: f"part {i + 1} of {PARTS}")
    if not far:
        i = np.arange(L)
        by_distance = [  # [(L - 1) V, ...]
            np.concatenate([x[i[:-d], :, i[d:]].sum(0) for d in range(1, L)]) for x in together(tokens, p, asked)
        ]
        add("distances", by_distance, np.repeat(np.arange(L - 1), V), lambda i: f"distance {i + 1}")
    return rows


def log_scores(tokens: np.ndarray, p: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(x) less its mean [n, L], and its variance; zero where nothing was asked."""
    logs = np.log(np.where(p > 0, p, 1))
    entropy = -(p * logs).sum(2)
    variance = np.where(asked, (p * logs**2).sum(2) - entropy**2, 0)
    own = np.take_along_axis(logs, tokens[..., None], 2)[..., 0]
    return np.where(asked, own + entropy, 0), variance


def by_likelihood(layer: str, score: np.ndarray, variance: np.ndarray, count: int, **place: Any) -> list[Row]:
    """log p less its mean (score [n, L], of variance [n, L]): of all `count` tokens, its spread over sequences, and its
    correlation with itself at every distance."""
    L = score.shape[1]
    whole, expected = score.sum(1), variance.sum(1)
    error = math.sqrt(expected.sum()) / count
    z = np.array([whole.sum() / count / error])
    values = {"effect": abs(whole.sum()) / count, "minimum_detectable_effect": detectable_z(error), **place}
    rows = [normal(layer, "likelihood", count, z, str, **values)]
    rows.append(spread(layer, whole, expected, **place))
    both, squares, lags = score.T @ score, (score**2).T @ variance, range(1, L)
    products = np.array([np.trace(both, d) for d in lags])
    errors = np.sqrt([np.trace(squares, d) for d in lags])
    scale = np.array([variance[:, d:].sum() for d in lags])  # so that the effect is a correlation
    some = errors > math.sqrt(LEAST) * variance.max()
    z = np.where(some, products / np.maximum(errors, 1e-9), 0.0)
    best = int(np.abs(z).argmax())
    limit = detectable_z(float((errors / np.maximum(scale, 1e-9))[some].min()), int(some.sum())) if some.any() else None
    values = {"effect": abs(products[best]) / max(scale[best], 1e-9), "minimum_detectable_effect": limit, **place}
    return [*rows, normal(layer, "correlations", count, z, lambda i: f"distance {i + 1}", **values)]


def spread(layer: str, whole: np.ndarray, expected: np.ndarray, **place: Any) -> Row:
    """Whether sums [n] with mean zero have the variances `expected` [n], which depend on what was drawn. Squares are
    skewed, so the t of a hundred sequences is far from normal; Hall's transformation (1992, J. R. Stat. Soc. B 54)
    corrects it."""
    off = whole**2 - expected
    n, scale = len(off), float(off.std())
    t, skew = off.mean() / scale, float(stats.skew(off))
    z = math.sqrt(n) * (t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / (6 * n))
    values = {"statistic": z, "effect": abs(off.sum() / expected.sum()), **place}
    values["minimum_detectable_effect"] = detectable_z(scale * math.sqrt(n) / expected.sum())
    return R.make_row(layer, "likelihood spread", n, p_value=2 * float(stats.t.sf(abs(z), n - 1)), **values)


def by_rows(layer: str, tokens: np.ndarray, p: np.ndarray, asked: np.ndarray, **place: Any) -> Row:
    """Whether sequences next to each other agree as often as independent ones do: the 1st with the 2nd, the 3rd with
    the 4th, ..., then the 2nd with the 3rd, ...: pairs that share a sequence are not independent."""
    moves, errors, free = [], [], asked.any(0)
    for first in range(2):
        one, other = ([x[k::2][:, free] for x in (tokens, p, asked)] for k in (first, first + 1))
        m = min(len(one[0]), len(other[0]))
        (a, p_a, asked_a), (b, p_b, asked_b) = ([x[:m] for x in half] for half in (one, other))
        both = asked_a & asked_b
        expected = np.einsum("nlv,nlv->nl", p_a, p_b)
        errors.append(math.sqrt((expected * (1 - expected)).sum()) / both.sum())
        moves.append(float((((a == b) & both) - expected).sum() / both.sum()))
    values = {"effect": max(map(abs, moves)), "minimum_detectable_effect": detectable_z(max(errors), 2), **place}
    z = np.array(moves) / np.array(errors)
    return normal(layer, "rows", int(asked.sum()) // 2, z, lambda i: f"half {i + 1}", **values)


def by_agreement(layer: str, tokens: np.ndarray, p: np.ndarray, known: np.ndarray, size: int, **place: Any) -> Row:
    """Whether any two sequences of one batch of `size` agree more often than independent ones do.

    For a pair that agrees at S of its tokens, where sum p_a . p_b were expected given the past, 2^S exp(-expected) is
    an e-value (a supermartingale). So is the mean over all pairs, and its inverse is a p-value (Ville 1939).
    """
    asked = ~(known | ((p.max(2) == 1) | known).all(0))
    logs, most, compared, usual = [], 0.0, 0, 0.0
    for begin in range(0, len(tokens) - 1, size):
        x, law, free = (a[begin : begin + size] for a in (tokens, p, asked))
        first, second = np.triu_indices(len(x), 1)
        both = free[first] & free[second]
        agree = ((x[first] == x[second]) & both).sum(1)
        dots = np.einsum("alv,blv->abl", law, law, optimize=True)[first, second]
        expected = (dots * both).sum(1)
        logs.append(agree * math.log(2) - expected)
        usual += float(expected.sum())
        compared += int(both.sum())
        most = max(most, float(((agree - expected) / np.maximum(both.sum(1), 1)).max()))
    each = np.concatenate(logs)
    p_value = min(1.0, math.exp(-float(special.logsumexp(each) - math.log(len(each)))))
    note, usual = f"{len(each)} pairs of sequences, in batches of {size}", usual / len(each)
    of_one_pair = (math.log(len(each) / R.get_alpha()) + usual) / math.log(2) - usual
    values = {"effect": most, "minimum_detectable_effect": of_one_pair * len(each) / max(compared, 1), **place}
    return R.make_row(layer, "agreement", compared, p_value=p_value, note=note, **values)


def by_pairs(layer: str, tokens: np.ndarray, two: np.ndarray, free: np.ndarray, **place: Any) -> Row:
    """Chi-squares of the counts of every two positions' tokens; cells that expect too few are one."""
    n, L = tokens.shape
    V = two.shape[1]
    one = hot(tokens, V).reshape(n, -1)
    counts = (one.T @ one).astype(float).reshape(L, V, L, V)
    i, j = np.triu_indices(L, 1)
    own = free[i] & free[j]
    i, j = i[own], j[own]
    drawn, mean = (x[i, :, j].reshape(len(i), V * V) for x in (counts, n * two))
    few = mean < CELL
    alone = np.where(few, mean, 0).sum(1) < CELL  # too few even together: with the smallest of the others
    least = np.where(few, np.inf, mean).argmin(1)
    few[np.arange(len(few))[alone], least[alone]] = True
    rest = [np.where(few, x, 0).sum(1, keepdims=True) for x in (drawn, mean)]
    cells = [np.concatenate([np.where(few, 0, x), r], 1) for x, r in zip((drawn, mean), rest, strict=True)]
    chi2 = ((cells[0] - cells[1]) ** 2 / np.where(cells[1] > 0, cells[1], np.inf)).sum(1)
    df = (cells[1] > 0).sum(1) - 1
    top = np.sort(np.where(few, 0, mean), 1)[:, -2:]
    top = np.where(top > 0, top, np.maximum(rest[1], CELL))  # of one likely cell and all others together
    weight = np.where(df > 0, n**2 * (1 / top).sum(1), 0)
    t = Tables(chi2, df, 0.5 * np.abs(cells[0] - cells[1]).sum(1) / n, weight)
    return smallest(layer, "pairs", n, t, lambda k: f"positions {i[k]} and {j[k]}", **place)


def score_rows(
    layer: str,
    tokens: np.ndarray,
    p: np.ndarray,
    two: np.ndarray | None,
    slot: np.ndarray | None,
    known: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray] | None,
    far: bool = False,
    **place: Any,
) -> list[Row]:
    """One row a test. Forced positions (a law that is certain in every row) are left out.

    tokens  [n, L]
    p       [n, L, V] the model's law of each token given those before it
    two     [L, V, L, V] its law of any two tokens, whatever stands between them, where that is known
    slot    [n, L] slot of each token in its pass, for decoders where it is known before the token is drawn
    known   [n, L] tokens of the prompt, drawn from the law: they stand as contexts alone. p is given them all
    scores  log p less its mean and its variance [n, L], where they are not those of p: p is then the law of parts of a
            density's range
    far     leaves out the tests of every pair of positions, whose number grows with the square of the length
    """
    impossible = (np.take_along_axis(p, tokens[..., None], 2)[..., 0] == 0) & ~known
    asked = ~known & ~((p.max(2) == 1) | known).all(0)
    p = np.where(asked[..., None], p, 0)
    rows = [
        *by_context(layer, tokens, p, asked, slot, far, **place),
        *by_likelihood(layer, *(scores or log_scores(tokens, p, asked)), int(asked.sum()), **place),
        by_rows(layer, tokens, p, asked, **place),
    ]
    if two is not None:
        rows.append(by_pairs(layer, tokens, two, asked.any(0), **place))
    return rows + ([support_row(layer, impossible, **place)] if impossible.any() else [])


def support_row(layer: str, impossible: np.ndarray, **place: Any) -> Row:
    note = f"{int(impossible.sum())} of {impossible.size} tokens have probability zero"
    values = {"effect": float(impossible.mean()), "p_value": R.SMALLEST, "note": note, **place}
    return R.make_row(layer, "support", impossible.size, **values)
