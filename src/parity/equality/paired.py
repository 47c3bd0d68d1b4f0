"""Paired by prompt: two decoders on the same prompts with independent seeds.

    both = matched(name, x, y, ids_x, ids_y)      scores [n] or features [n, d] of the images of two decoders
    scalar_rows(both, margin=0.05, seed=0, ...) -> rows
    mmd_row(both, seed=0, swaps=999, ...) -> row
    fid_row(real, both, seed=0, swaps=99, ...) -> row      real: features [m, d]

ids are "<prompt>/<repeat>"; both sides must hold the same ones, in any order. Column `method` is side x, the baseline
side y; differences are method minus baseline.

Given the prompt, the two images are exchangeable under the null if their seeds are independent, so the null of MMD
and FID swaps them within the pair. Free permutation over prompts is not offered: prompts differ by far more than
decoders, and its size and power are 0.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from scipy import spatial, stats

from parity.base.errors import ParityError
from parity.metrics import fid

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the Gaussian kernels, times the median distance
LEAST = 10  # prompts


class Matched(NamedTuple):
    """Two sides in one order: finite x and y [n, ...], float64, of the same images, ids [n]."""

    name: str
    x: np.ndarray
    y: np.ndarray
    ids: list[str]

    @property
    def prompts(self) -> np.ndarray:
        """Prompt of each image: its id without the repeat, as numbers [n]."""
        return np.unique([i.rsplit("/", 1)[0] for i in self.ids], return_inverse=True)[1]


def matched(name: str, x: np.ndarray, y: np.ndarray, ids_x: Iterable[str], ids_y: Iterable[str]) -> Matched:
    """Both sides in the order of their ids; ParityError for ids that differ or repeat, and for what is not finite."""
    a, b = [str(i) for i in ids_x], [str(i) for i in ids_y]
    for side, ids, values in (("first", a, x), ("second", b, y)):
        if len(set(ids)) < len(ids):
            raise ParityError(f"{side} side: an image id stands twice: {next(i for i in ids if ids.count(i) > 1)}")
        if len(values) != len(ids):
            raise ParityError(f"{name}: {len(values)} values for {len(ids)} images")
        bad = ~np.isfinite(values).reshape(len(ids), -1).all(1)
        if bad.any():
            raise ParityError(f"{name}: not finite for image {ids[int(np.argmax(bad))]}")
    if set(a) != set(b):
        sides = (("first", {*a} - {*b}), ("second", {*b} - {*a}))
        only = [f"only on the {side} side: {', '.join(sorted(ids))}" for side, ids in sides if ids]
        raise ParityError(f"prompt sets differ; {'; '.join(only)}")
    order_x, order_y = np.argsort(a), np.argsort(b)
    return Matched(name, np.asarray(x, float)[order_x], np.asarray(y, float)[order_y], [a[i] for i in order_x])


def tost_p(x: np.ndarray, y: np.ndarray, margin: float) -> float:
    """p-value of the null |mean difference| >= margin (two one-sided paired t-tests)."""
    difference = np.asarray(x) - np.asarray(y)
    above = stats.ttest_1samp(difference, -margin, alternative="greater").pvalue
    return float(max(above, stats.ttest_1samp(difference, margin, alternative="less").pvalue))


def mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    return (x - y).mean(axis)


def scalar_rows(both: Matched, *, margin: float, seed: int = 0, resamples: int = 1999, **place: Any) -> list[Row]:
    """Paired t, bootstrap interval and TOST of the per-prompt mean difference (repeats of a prompt are averaged: they
    are not independent). `margin` is in the score's units and fixed beforehand. Effect and its interval are the mean
    difference; the t row decides.

    TOST's null is |difference| >= margin: its verdict is "equivalent within ..." or "not shown equivalent ...", never a
    rejection.
    """
    prompt = both.prompts
    size = np.bincount(prompt)
    x, y = np.bincount(prompt, both.x) / size, np.bincount(prompt, both.y) / size
    n, common = len(size), {**place, "seed": seed}
    tests = [f"{both.name}: {test}" for test in ("paired t", "bootstrap", "TOST")]
    if n < LEAST:
        return [R.not_run("paired", test, n, f"n >= {LEAST} prompts", **common) for test in tests]
    d = x - y
    if np.ptp(d) == 0:  # the two sides agree (or differ by a constant): no variance to test against
        common |= {"effect": float(d[0])}
        return [R.not_run("paired", test, n, "prompts whose differences differ", **common) for test in tests]
    error = float(d.std(ddof=1) / n**0.5)
    values = common | {"effect": float(d.mean()), "minimum_detectable_effect": R.detectable_z(error)}
    t = stats.ttest_rel(x, y)
    low, high = (float(v) for v in t.confidence_interval(1 - R.ALPHA))
    t_row = R.row("paired", tests[0], n, statistic=t.statistic, p_value=t.pvalue, **values) | {"low": low, "high": high}
    settings = {"paired": True, "vectorized": True, "method": "BCa", "batch": 200, "n_resamples": resamples}
    boot = stats.bootstrap((x, y), mean_difference, rng=np.random.default_rng(seed), **settings)
    low, high = (float(v) for v in boot.confidence_interval)
    verdict = "interval holds 0" if low <= 0 <= high else "interval excludes 0"
    boot_row = R.row("paired", tests[1], n, **values | {"verdict": verdict, "decides": False})
    boot_row |= {"low": low, "high": high}
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
    of_width = [
        ((s @ np.exp(-distance / (2 * h * h * max(median, 1e-300)))) * s).sum(1) / len(x) ** 2 for h in bandwidths
    ]
    return np.stack(of_width)


def mmd_row(both: Matched, *, seed: int = 0, swaps: int = 999, **place: Any) -> Row:
    """MMD with within-prompt swaps; kernels are aggregated inside the swaps: the statistic is the largest over
    kernels of MMD^2 in standard deviations of that kernel's swap distribution, for the sample and for every swap
    alike. Effect: the plain MMD at the median."""
    n, test, common = len(both.ids), f"{both.name}: MMD", {**place, "seed": seed}
    if n < LEAST:
        return R.not_run("paired", test, n, f"n >= {LEAST} images", **common)
    of_width = mmd_statistics(both.x, both.y, swap_signs(n, swaps, np.random.default_rng(seed)))
    sd = of_width.std(1, keepdims=True)
    scaled = ((of_width - of_width.mean(1, keepdims=True)) / np.where(sd > 0, sd, 1)).max(0)
    middle = of_width[BANDWIDTHS.index(1.0)]
    smallest = float(
        max(np.quantile(middle, 1 - R.ALPHA) - middle.mean(), 0) ** 0.5
    )  # excess at the null's .95 quantile
    effect = float(max(middle[0] - middle[1:].mean(), 0) ** 0.5)
    values = common | {"statistic": scaled[0], "effect": effect, "minimum_detectable_effect": smallest}
    return R.row("paired", test, n, p_value=R.monte_carlo_p(scaled[0], scaled[1:]), **values)


def fid_row(real: np.ndarray | fid.Reference, both: Matched, *, seed: int = 0, swaps: int = 99, **place: Any) -> Row:
    """FID(x) - FID(y) against the same real features, with within-prompt swaps, two-sided. One swap costs two Frechet
    distances.

    Minimum detectable effect: (z.975 + z.80) standard deviations of the swap distribution.
    """
    x, y, test, common = both.x, both.y, "FID difference", {**place, "seed": seed}
    n, d = x.shape
    if n <= d:  # a singular covariance: the distance is mostly bias
        return R.not_run("paired", test, n, f"n >= {d + 1} images", **common)
    half, differences = real if isinstance(real, fid.Reference) else fid.reference_half(real), []
    for sign in swap_signs(n, swaps, np.random.default_rng(seed)):
        stay = (sign > 0)[:, None]
        differences.append(fid.frechet(np.where(stay, x, y), half) - fid.frechet(np.where(stay, y, x), half))
    difference, null = differences[0], np.array(differences[1:])
    sd = float(np.sqrt((null**2).mean()))  # its mean is 0 by symmetry
    values = {"statistic": difference / sd if sd > 0 else 0.0, "effect": difference}
    values |= {"minimum_detectable_effect": R.detectable_z(sd)}
    return R.row("paired", test, n, p_value=R.monte_carlo_p(abs(difference), abs(null)), **common | values)
