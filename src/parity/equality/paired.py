"""Layer 4, paired by prompt: two decoders on the same prompts with independent seeds.

    scalar_rows(a, b, ids_a, ids_b, name="clip", margin=0.05, seed=0, ...) -> rows    per-image scores a, b [n]
    mmd_row(x, y, ids_x, ids_y, seed=0, swaps=999, ...) -> row                        features [n, d]
    fid_row(real, x, y, ids_x, ids_y, seed=0, swaps=99, ...) -> row                   features [m, d] of real; [n, d]

ids are "<prompt>/<repeat>"; both sides must hold the same ones (else ParityError, with the difference), in any order.
Column `method` is side a / x, the baseline is side b / y; differences are method minus baseline.

Given the prompt, the two images are exchangeable under the null if their seeds are independent, so the null of MMD
and FID swaps them within the pair. Free permutation over prompts is not offered: prompts differ by far more than
decoders, and its size and power are 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import spatial, stats

from parity.base.errors import ParityError
from parity.equality import rows as R
from parity.equality.rows import Row
from parity.metrics import fid

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the Gaussian kernels, times the median distance
LEAST = 10  # prompts


def align(ids_a: Sequence[str], ids_b: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Orders that bring both sides to the same sequence of ids; ParityError that lists what only one side has."""
    a, b = [str(i) for i in ids_a], [str(i) for i in ids_b]
    for side, ids in (("first", a), ("second", b)):
        if len(set(ids)) < len(ids):
            raise ParityError(f"{side} side: an image id stands twice: {next(i for i in ids if ids.count(i) > 1)}")
    if set(a) != set(b):
        only = [
            f"only on the {side} side: {', '.join(sorted(d))}"
            for side, d in (("first", {*a} - {*b}), ("second", {*b} - {*a}))
            if d
        ]
        raise ParityError(f"prompt sets differ; {'; '.join(only)}")
    return np.argsort(a), np.argsort(b)


def prompts(ids: Sequence[str], order: np.ndarray) -> np.ndarray:
    """Prompt of each image in the given order: its id without the repeat, as numbers [n]."""
    return np.unique([str(ids[i]).rsplit("/", 1)[0] for i in order], return_inverse=True)[1]


def finite(name: str, values: np.ndarray, ids: Sequence[str]) -> np.ndarray:
    """float64 copy; ParityError that names the first image whose value is not finite."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) != len(ids):
        raise ParityError(f"{name}: {len(x)} values for {len(ids)} images")
    bad = ~np.isfinite(x).reshape(len(x), -1).all(1)
    if bad.any():
        raise ParityError(f"{name}: not finite for image {ids[int(np.argmax(bad))]}")
    return x


def tost_p(x: np.ndarray, y: np.ndarray, margin: float) -> float:
    """p-value of the null |mean difference| >= margin (two one-sided paired t-tests)."""
    difference = np.asarray(x) - np.asarray(y)
    above = stats.ttest_1samp(difference, -margin, alternative="greater").pvalue
    return float(max(above, stats.ttest_1samp(difference, margin, alternative="less").pvalue))


def scalar_rows(
    a: np.ndarray,
    b: np.ndarray,
    ids_a: Sequence[str],
    ids_b: Sequence[str],
    *,
    name: str,
    margin: float,
    seed: int = 0,
    resamples: int = 1999,
    **place: Any,
) -> list[Row]:
    """Paired t, bootstrap interval and TOST of the per-prompt mean difference (repeats of a prompt are averaged: they
    are not independent). `margin` is in the score's units and fixed beforehand. Effect and its interval are the mean
    difference; the t row decides.

    TOST's null is |difference| >= margin: its verdict is "equivalent within ..." or "not shown equivalent ...", never a
    rejection.
    """
    order_a, order_b = align(ids_a, ids_b)
    x, y = finite(name, a, ids_a)[order_a], finite(name, b, ids_b)[order_b]
    prompt = prompts(ids_a, order_a)
    size = np.bincount(prompt)
    x, y = np.bincount(prompt, x) / size, np.bincount(prompt, y) / size
    n, common = len(size), {"model": ""} | place | {"seed": seed}
    tests = [f"{name}: paired t", f"{name}: bootstrap", f"{name}: TOST"]
    if n < LEAST:
        return [R.not_run("paired", test, n, f"n >= {LEAST} prompts", **common) for test in tests]
    d = x - y
    if np.ptp(d) == 0:  # the two sides agree (or differ by a constant): no variance to test against
        common |= {"effect": float(d[0])}
        return [R.not_run("paired", test, n, "prompts whose differences differ", **common) for test in tests]
    error, effect = float(d.std(ddof=1) / n**0.5), float(d.mean())
    values = common | {"effect": effect, "minimum_detectable_effect": R.detectable_z(error)}
    t = stats.ttest_rel(x, y)
    low, high = t.confidence_interval(1 - R.ALPHA)
    t_row = R.row("paired", tests[0], n, statistic=t.statistic, p_value=t.pvalue, **values) | {
        "low": float(low),
        "high": float(high),
    }
    rng = np.random.default_rng(seed)

    def mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return (x - y).mean(axis)

    boot = stats.bootstrap(
        (x, y), mean_difference, paired=True, vectorized=True, n_resamples=resamples, rng=rng, method="BCa", batch=200
    )
    low, high = (float(v) for v in boot.confidence_interval)
    verdict = "interval holds 0" if low <= 0 <= high else "interval excludes 0"
    boot_row = R.row("paired", tests[1], n, **values | {"verdict": verdict, "decides": False}) | {
        "low": low,
        "high": high,
    }
    p = tost_p(x, y, margin)
    reach = 2.93 * float(d.std(ddof=1)) / n**0.5  # margin that TOST reaches with power .8 at no difference: z.95 + z.90
    verdict = f"equivalent within {margin:g}" if p <= R.ALPHA else f"not shown equivalent within {margin:g}"
    tost = values | {"minimum_detectable_effect": reach, "verdict": verdict, "decides": False}
    tost_row = R.row("paired", tests[2], n, p_value=p, **tost) | {"low": -margin, "high": margin}
    return [t_row, boot_row, tost_row]


def swap_signs(n: int, swaps: int, rng: np.random.Generator) -> np.ndarray:
    """[1 + swaps, n] of +1 and -1: the first row swaps no pair."""
    signs = rng.choice([-1.0, 1.0], (1 + swaps, n))
    signs[0] = 1
    return signs


def mmd_statistics(
    x: np.ndarray, y: np.ndarray, signs: np.ndarray, bandwidths: Sequence[float] = BANDWIDTHS
) -> np.ndarray:
    """Biased MMD^2 [kernels, 1 + swaps] of features x, y [n, d] under the pair swaps `signs`.

    With s = [e, -e] every swap is a quadratic form s K s / n^2 in one Gram matrix of both sides.
    """
    distance = spatial.distance.squareform(spatial.distance.pdist(np.concatenate([x, y]), "sqeuclidean"))
    median = np.median(distance[np.triu_indices(len(distance), 1)])
    s = np.concatenate([signs, -signs], 1)
    found = [((s @ np.exp(-distance / (2 * h * h * max(median, 1e-300)))) * s).sum(1) / len(x) ** 2 for h in bandwidths]
    return np.stack(found)


def mmd_row(
    x: np.ndarray,
    y: np.ndarray,
    ids_x: Sequence[str],
    ids_y: Sequence[str],
    *,
    seed: int = 0,
    swaps: int = 999,
    name: str = "features",
    **place,
) -> Row:
    """MMD with within-prompt swaps; kernels are aggregated inside the swaps: the statistic is the largest over
    kernels of MMD^2 in standard deviations of that kernel's swap distribution, for the sample and for every swap
    alike. Effect: the plain MMD at the median."""
    order_x, order_y = align(ids_x, ids_y)
    x, y = finite(name, x, ids_x)[order_x], finite(name, y, ids_y)[order_y]
    n, test, common = len(x), f"{name}: MMD", {"model": ""} | place | {"seed": seed}
    if n < LEAST:
        return R.not_run("paired", test, n, f"n >= {LEAST} images", **common)
    found = mmd_statistics(x, y, swap_signs(n, swaps, np.random.default_rng(seed)))
    sd = found.std(1, keepdims=True)
    scaled = ((found - found.mean(1, keepdims=True)) / np.where(sd > 0, sd, 1)).max(0)
    middle = found[BANDWIDTHS.index(1.0)]
    # excess MMD at the null's .95 quantile
    smallest = float(max(np.quantile(middle, 1 - R.ALPHA) - middle.mean(), 0) ** 0.5)
    effect = float(max(middle[0] - middle[1:].mean(), 0) ** 0.5)
    p = R.monte_carlo_p(scaled[0], scaled[1:])
    values = common | {"statistic": scaled[0], "effect": effect, "minimum_detectable_effect": smallest}
    return R.row("paired", test, n, p_value=p, **values)


def fid_row(
    real: np.ndarray | fid.Reference,
    x: np.ndarray,
    y: np.ndarray,
    ids_x: Sequence[str],
    ids_y: Sequence[str],
    *,
    seed: int = 0,
    swaps: int = 99,
    name: str = "FID",
    **place: Any,
) -> Row:
    """FID(x) - FID(y) against the same real features, with within-prompt swaps, two-sided. One swap costs two Frechet
    distances.

    Minimum detectable effect: (z.975 + z.80) standard deviations of the swap distribution.
    """
    order_x, order_y = align(ids_x, ids_y)
    x, y = finite(name, x, ids_x)[order_x], finite(name, y, ids_y)[order_y]
    n, d, common = len(x), x.shape[1], {"model": ""} | place | {"seed": seed}
    if n <= d:  # a singular covariance: the distance is mostly bias
        return R.not_run("paired", f"{name} difference", n, f"n >= {d + 1} images", **common)
    half = real if isinstance(real, fid.Reference) else fid.reference_half(real)
    found = []
    for sign in swap_signs(n, swaps, np.random.default_rng(seed)):
        stay = (sign > 0)[:, None]
        found.append(fid.frechet(np.where(stay, x, y), half) - fid.frechet(np.where(stay, y, x), half))
    difference, null = found[0], np.array(found[1:])
    sd = float(np.sqrt((null**2).mean()))  # its mean is 0 by symmetry
    values = common | {
        "statistic": difference / sd if sd > 0 else 0.0,
        "effect": difference,
        "minimum_detectable_effect": R.detectable_z(sd),
    }
    return R.row("paired", f"{name} difference", n, p_value=R.monte_carlo_p(abs(difference), abs(null)), **values)
