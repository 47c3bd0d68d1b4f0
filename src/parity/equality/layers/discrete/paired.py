"""Compare quality and likelihood with plain decoding, prompt by prompt, the two with independent seeds. Reads features
alone, so it starts without torch.

Ids are "<prompt>/<repeat>". The cell is side x, plain decoding side y; differences are x minus y. Given the prompt, the
two images are exchangeable under the null, so the null of MMD and FID swaps them within the pair. Free permutation over
prompts is not offered: prompts differ by far more than decoders, and its size and power are 0.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from scipy import spatial, special, stats

from parity.base.errors import ParityError
from parity.equality.layers import CellFiles
from parity.metrics import fid

ROLES = ("control", "method", "again")
WHEN = "always"
READS = ("features", "baseline", "reference")
WRITES = ()
SETTINGS = ("seeds", "margin_clip", "margin_logp", "swaps")
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # deviations of MMD's Gaussian kernels, in medians of the distance
PAIRS = 1000  # MMD compares each image with those of this many pairs, so that its cost grows with their number alone
LEAST = 10  # number of prompts or images below which a test is not run


def rows(cell: CellFiles) -> list[Row]:
    """Make the rows that test the cell against plain decoding: log p and, where the features file has them, CLIP-score,
    image features (MMD) and FID."""
    settings, x, y = cell.settings, cell.features, cell.baseline.features
    columns = {**cell.columns, "seed": settings["seeds"][0]}
    logp = match_sides("log p", average_logp(x["logp"]), average_logp(y["logp"]), x["ids"], y["ids"])
    result = make_scalar_rows(logp, margin=settings["margin_logp"], **columns)
    if "cosine" in x:
        cosine = match_sides("CLIP", x["cosine"], y["cosine"], x["ids"], y["ids"])
        result += make_scalar_rows(cosine, margin=settings["margin_clip"], **columns)
    if "features" in x:
        network = "Inception features" if x["features"].shape[1] == 2048 else "CLIP features"
        features = match_sides(network, x["features"], y["features"], x["ids"], y["ids"])
        swaps = settings["swaps"]
        result.append(make_mmd_row(features, swaps=swaps, **columns))
        if "features" in cell.reference:
            result.append(make_fid_row(cell.reference["features"], features, swaps=min(swaps, 199), **columns))
    return result


def average_logp(logp: np.ndarray) -> np.ndarray:
    """Average logp [n, L] of each image [n]; forced tokens (NaN) and those that the distribution excludes (-inf) left
    out."""
    return np.nanmean(np.where(np.isneginf(logp), np.nan, logp), 1)


class Matched(NamedTuple):
    """Two sides in one order: finite x and y [n, ...], float64, of the same images, ids [n]."""

    name: str
    x: np.ndarray
    y: np.ndarray
    ids: list[str]


def match_sides(name: str, x: np.ndarray, y: np.ndarray, ids_x: Iterable[str], ids_y: Iterable[str]) -> Matched:
    """Put both sides in the order of their ids. Raises ParityError if the ids differ or a value is not finite."""
    a, b = [str(i) for i in ids_x], [str(i) for i in ids_y]
    for ids, values in ((a, x), (b, y)):
        bad = ~np.isfinite(values).reshape(len(ids), -1).all(1)
        if bad.any():
            raise ParityError(f"{name}: not finite for image {ids[int(np.argmax(bad))]}")
    if set(a) != set(b):
        sides = (("first", {*a} - {*b}), ("second", {*b} - {*a}))
        only = [f"only on the {side} side: {', '.join(sorted(ids))}" for side, ids in sides if ids]
        raise ParityError(f"{name}: ids differ; {'; '.join(only)}")
    order_x, order_y = np.argsort(a), np.argsort(b)
    return Matched(name, np.asarray(x, float)[order_x], np.asarray(y, float)[order_y], [a[i] for i in order_x])


def compute_tost_p(x: np.ndarray, y: np.ndarray, margin: float) -> float:
    """Compute the p-value of the null |mean difference| >= margin (two one-sided paired t-tests)."""
    p_lower = stats.ttest_1samp(x - y, -margin, alternative="greater").pvalue
    return float(max(p_lower, stats.ttest_1samp(x - y, margin, alternative="less").pvalue))


def make_scalar_rows(
    sides: Matched, *, margin: float, seed: int = 0, resamples: int = 1999, **columns: Any
) -> list[Row]:
    """Make three rows that test the mean difference of a score per prompt: paired t, bootstrap interval and TOST
    (repeats of a prompt are averaged, because they are not independent). `margin` is in the score's units and fixed
    beforehand. Effect and its interval are the mean difference; only the t row decides.

    TOST's null is |difference| >= margin: its verdict is "equivalent within ..." or "not shown equivalent ...", never a
    rejection.
    """
    _, prompt = np.unique([i.rsplit("/", 1)[0] for i in sides.ids], return_inverse=True)
    size = np.bincount(prompt)
    x, y = np.bincount(prompt, sides.x) / size, np.bincount(prompt, sides.y) / size
    n, d = len(size), x - y
    common = {**columns, "seed": seed}
    tests = [f"{sides.name}: {test}" for test in ("paired t", "bootstrap", "TOST")]
    if n < LEAST:
        return [R.make_not_run_row("paired", test, n, f"n >= {LEAST} prompts", **common) for test in tests]
    if np.ptp(d) == 0:  # the sides agree or differ by a constant, so there is no variance to test against
        common |= {"effect": float(d[0])}
        return [R.make_not_run_row("paired", test, n, "prompts whose differences differ", **common) for test in tests]
    error = float(d.std(ddof=1) / n**0.5)
    values = common | {"effect": float(d.mean()), "minimum_detectable_effect": R.compute_detectable_z(error)}
    t = stats.ttest_rel(x, y)
    settings = {"method": "BCa", "batch": 200, "n_resamples": resamples, "confidence_level": 1 - R.get_alpha()}
    boot = stats.bootstrap((d,), np.mean, rng=np.random.default_rng(seed), **settings).confidence_interval
    p = compute_tost_p(x, y, margin)
    alpha = R.get_alpha()
    # `tost_margin` is the margin within which TOST shows two equal sides to be equivalent with probability POWER.
    tost_margin = float(special.ndtri((1 + R.POWER) / 2) - special.ndtri(alpha)) * error
    boot_verdict = "interval holds 0" if boot.low <= 0 <= boot.high else "interval excludes 0"
    tost_verdict = f"{'equivalent' if p <= alpha else 'not shown equivalent'} within {margin:g}"
    diagnostic = values | {"decides": False}
    tost = diagnostic | {"minimum_detectable_effect": tost_margin, "verdict": tost_verdict}
    result = [
        R.make_row("paired", tests[0], n, statistic=t.statistic, p_value=t.pvalue, **values),
        R.make_row("paired", tests[1], n, **diagnostic | {"verdict": boot_verdict}),
        R.make_row("paired", tests[2], n, p_value=p, **tost),
    ]
    limits = (t.confidence_interval(1 - alpha), boot, (-margin, margin))
    return [r | {"low": float(low), "high": float(high)} for r, (low, high) in zip(result, limits, strict=True)]


def draw_signs(n: int, swaps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw signs [1 + swaps, n], -1 where a pair is swapped; the first row swaps no pair."""
    signs = rng.choice([-1.0, 1.0], (1 + swaps, n))
    signs[0] = 1
    return signs


def compute_mmd(x: np.ndarray, y: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Compute the biased MMD^2 [kernels, 1 + swaps] of features x, y [n, d] under the pair swaps `signs` [1 + swaps,
    n]: the mean over blocks of PAIRS pairs, or a little fewer (Zaremba et al. 2013)."""
    blocks = np.array_split(np.arange(len(x)), -(-len(x) // PAIRS))
    return np.sum([len(b) / len(x) * compute_block_mmd(x[b], y[b], signs[:, b]) for b in blocks], 0)


def compute_block_mmd(x: np.ndarray, y: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Compute `compute_mmd` of one block: with s = [e, -e] every swap is a quadratic form s K s / n^2 in one Gram
    matrix of both sides."""
    distance = spatial.distance.squareform(spatial.distance.pdist(np.concatenate([x, y]), "sqeuclidean"))
    median = np.median(distance[np.triu_indices(len(distance), 1)])
    s = np.concatenate([signs, -signs], 1)
    kernels = (np.exp(-distance / (2 * h * h * max(median, 1e-300))) for h in BANDWIDTHS)
    return np.stack([((s @ kernel) * s).sum(1) / len(x) ** 2 for kernel in kernels])


def make_mmd_row(sides: Matched, *, seed: int = 0, swaps: int = 999, **columns: Any) -> Row:
    """Make the row that tests features by MMD with within-prompt swaps. Kernels are aggregated inside the swaps: the
    statistic is the largest over kernels of MMD^2 in standard deviations of that kernel's swap distribution, for the
    sample as for every swap. Effect: MMD with the kernel of the median distance, the mean of swaps subtracted; the
    smallest detectable one is the largest that is not rejected."""
    n = len(sides.ids)
    test = f"{sides.name}: MMD"
    common = {**columns, "seed": seed}
    if n < LEAST:
        return R.make_not_run_row("paired", test, n, f"n >= {LEAST} images", **common)
    for draws in R.list_null_draws(swaps):
        squares = compute_mmd(sides.x, sides.y, draw_signs(n, draws, np.random.default_rng(seed)))
        sd = squares.std(1, keepdims=True)
        scaled = ((squares - squares.mean(1, keepdims=True)) / np.where(sd > 0, sd, 1)).max(0)
        p = R.compute_monte_carlo_p(scaled[0], scaled[1:])
        if p > 1 / (1 + draws):
            break
    median = squares[BANDWIDTHS.index(1.0)]
    limit = float(max(np.quantile(median, 1 - R.get_alpha()) - median.mean(), 0) ** 0.5)
    effect = float(max(median[0] - median[1:].mean(), 0) ** 0.5)
    values = common | {"statistic": scaled[0], "effect": effect, "minimum_detectable_effect": limit}
    return R.make_row("paired", test, n, p_value=p, **values)


def make_fid_row(real: np.ndarray, sides: Matched, *, seed: int = 0, swaps: int = 99, **columns: Any) -> Row:
    """Make the row that tests FID(x) - FID(y), its effect, against the same real features [m, d], by within-prompt
    swaps, two-sided. One swap costs two Frechet distances. Minimum detectable effect: that of a z-test with the
    standard deviation of the swap distribution."""
    x, y = sides.x, sides.y
    n, d = x.shape
    test = "FID difference"
    common = {**columns, "seed": seed}
    if n <= d:  # with a singular covariance the Frechet distance is mostly bias
        return R.make_not_run_row("paired", test, n, f"n >= {d + 1} images", **common)
    half = fid.reference_half(real)
    differences = []
    for sign in draw_signs(n, R.count_null_draws(swaps), np.random.default_rng(seed)):
        stays = (sign > 0)[:, None]
        differences.append(fid.frechet(np.where(stays, x, y), half) - fid.frechet(np.where(stays, y, x), half))
    difference, null = differences[0], np.array(differences[1:])
    sd = float(np.sqrt((null**2).mean()))  # the mean of `null` is 0 by symmetry
    values = {"statistic": difference / sd if sd > 0 else 0.0, "effect": difference}
    values |= {"minimum_detectable_effect": R.compute_detectable_z(sd)}
    return R.make_row("paired", test, n, p_value=R.compute_monte_carlo_p(abs(difference), abs(null)), **common | values)
