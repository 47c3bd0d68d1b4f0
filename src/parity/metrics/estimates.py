"""A figure with its error as one value, standard errors and intervals, and the t-tests that papers print.

Images of one prompt are not independent: where prompts repeat, a function takes `groups`, the prompt of each image."""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.95  # every interval of quality and speed has this confidence; tests and verdicts have `equality.alpha`
PERCENT = f"{100 * CONFIDENCE:g}%"
Z = round(NormalDist().inv_cdf((1 + CONFIDENCE) / 2), 2)  # an interval reaches Z errors to either side
NARROW = 1.1  # a measured speed is known well if both ends of its interval are within this factor of it
ENDS = ("", "_se", "_low", "_high")  # an estimate's columns are named by its name and these


class Estimate(NamedTuple):
    """A figure with its error or interval, and the reason why it is missing, or of a part of the images alone."""

    value: Any = None
    error: float | None = None  # the standard error
    low: float | None = None  # low and high are the ends of an interval of confidence CONFIDENCE
    high: float | None = None
    why: str = ""

    @property
    def missing(self) -> bool:
        return self.value is None

    def reach(self) -> tuple[float, float] | None:
        """Return the distances from the value down and up to the ends of its interval; None without an error."""
        if self.low is not None and self.high is not None:
            return self.value - self.low, self.high - self.value
        return None if self.error is None else (Z * self.error, Z * self.error)


def flat(value: Any) -> Any:
    """Convert a figure from numpy to what JSON holds; None for one that is not finite, as the spread of one batch."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def columns_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten figures to columns of a file: an estimate to `<name>`, `<name>_se`, `<name>_low`, `<name>_high`, as far
    as it has them, or to `<name>_why` alone if it gives a reason."""
    columns: dict[str, Any] = {}
    for name, figure in figures.items():
        if not isinstance(figure, Estimate):
            columns[name] = flat(figure)
        elif figure.why:
            columns[f"{name}_why"] = figure.why
        else:
            numbers = zip(ENDS, figure[:4], strict=True)
            columns |= {name + end: flat(number) for end, number in numbers if number is not None}
    return columns


def estimate_of(row: Mapping[str, Any], name: str) -> Estimate:
    """Read the figure `name` back from a row of such columns (`columns_of`); empty ones (None, NaN) are ignored."""
    numbers = [row.get(name + end) for end in (*ENDS, "_why")]
    value, error, low, high, reason = (None if number is None or number != number else number for number in numbers)
    return Estimate(value, error, low, high, reason or "")


def prompt_groups(ids: np.ndarray) -> np.ndarray:
    """Give each prompt of ids [n], "<prompt>/<repeat>", a number: [n] int, the same for rows of one prompt."""
    return np.unique([str(i).rsplit("/", 1)[0] for i in ids], return_inverse=True)[1]


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Compute mean and standard error of independent values [n], without NaN values; NaN if there are too few."""
    values = np.asarray(values, dtype=np.float64)
    values = values[~np.isnan(values)]
    mean = float(np.mean(values)) if len(values) else math.nan
    return mean, float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def log_mean(logs: np.ndarray) -> float:
    """Compute the logarithm of the mean of exp(logs) over logs [n], which may be too small or large for numbers."""
    largest = float(np.max(logs))
    return largest + float(np.log(np.mean(np.exp(logs - largest)))) if math.isfinite(largest) else largest


def means(**columns: np.ndarray) -> dict[str, Estimate]:
    """Estimate the mean of each column [n], its rows independent."""
    return {name: Estimate(*mean_error(values)) for name, values in columns.items()}


def mean_and_error(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Compute the mean of values [n] and its standard error, clustered by `groups` [n]; NaN for fewer than two groups.

    The mean is a ratio (sum of values over images), so the error is that of the group's sums of residuals: with one
    image per group it is sd / sqrt(n).
    """
    values = np.asarray(values, dtype=np.float64)
    mean, count = values.mean(), len(np.unique(groups))
    if count < 2:
        return float(mean), math.nan
    residual = np.bincount(groups, values - mean)
    return float(mean), float(np.sqrt((residual**2).sum() * count / (count - 1)) / len(values))


def ratio_and_error(numerator: np.ndarray, denominator: np.ndarray) -> tuple[float, float]:
    """Divide sum(numerator) by sum(denominator), each [n]; with a standard error by linearisation, NaN if n = 1."""
    ratio, count = float(numerator.sum() / denominator.sum()), len(numerator)
    if count < 2:
        return ratio, math.nan
    residual = numerator - numerator.sum() / denominator.sum() * denominator
    return ratio, float(np.sqrt((residual**2).sum() * count / (count - 1)) / denominator.sum())


def mean_ratio(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """Estimate the geometric mean of numerator / denominator over pairs [n], with Student's interval of the logarithm;
    without an interval for a single pair, missing for none."""
    from scipy import stats  # imported here because scipy takes long to import

    logs, n = np.log(np.asarray(numerator, dtype=np.float64) / denominator), len(numerator)
    if not n:
        return Estimate()
    mean = float(logs.mean())
    if n == 1:
        return Estimate(math.exp(mean))
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * logs.std(ddof=1) / math.sqrt(n))
    return Estimate(math.exp(mean), low=math.exp(mean - half_width), high=math.exp(mean + half_width))


def is_narrow(speed: Estimate) -> bool:
    """Return whether both ends of a speed's interval are within the factor NARROW of it."""
    if speed.low is None or speed.high is None:
        return False
    return bool(speed.high <= NARROW * speed.value <= NARROW**2 * speed.low)


def bootstrap_interval(values: np.ndarray, groups: np.ndarray, count: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean of values [n], resampling whole groups [n]."""
    sums, sizes = np.bincount(groups, np.asarray(values, dtype=np.float64)), np.bincount(groups)
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]
    rng = np.random.default_rng([seed, 1])
    drawn = (rng.integers(0, len(sums), len(sums)) for _ in range(count))
    means = [sums[chosen].sum() / sizes[chosen].sum() for chosen in drawn]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def half_jackknife(
    statistic: Callable[[np.ndarray], np.ndarray], groups: np.ndarray, count: int = 200, seed: int = 0
) -> np.ndarray:
    """Estimate the standard error of statistic(indices), a vector, from `count` random halves of the groups [n], drawn
    without replacement: the delete-half jackknife (Shao & Tu 1995, sec. 2.3). NaN for fewer than four groups.

    The bootstrap repeats images, which collapses nearest-neighbour balls and covariance ranks. On Gaussian features (d
    = 128, n = 128) it gave FID's deviation of 0.057 as 0.111; this gave 0.068.
    """
    names, rng = np.unique(groups), np.random.default_rng([seed, 2])
    half = len(names) // 2
    if half < 2:
        return np.full_like(statistic(np.arange(len(groups))), np.nan, dtype=np.float64)
    drawn = (np.flatnonzero(np.isin(groups, rng.permutation(names)[:half])) for _ in range(count))
    return np.stack([statistic(rows) for rows in drawn]).std(0) * np.sqrt(half / (len(names) - half))


def compare(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Compare two samples [n] of the same prompts in the same order: difference of the means, and p-values of Welch's
    t-test and of the paired one. Of two constants p is 0 or 1."""
    from scipy import stats  # imported here because scipy takes long to import

    difference = float(np.mean(a) - np.mean(b))
    constant = float(difference == 0)
    welch = stats.ttest_ind(a, b, equal_var=False).pvalue if np.ptp(a) > 0 or np.ptp(b) > 0 else constant
    paired = stats.ttest_rel(a, b).pvalue if np.ptp(a - b) > 0 else constant
    return {"difference": difference, "p_welch": float(welch), "p_paired": float(paired)}
