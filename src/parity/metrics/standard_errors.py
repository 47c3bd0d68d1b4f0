"""How uncertain a figure is: standard errors and intervals.

Images of one prompt are alike, so they are not counted as independent: where prompts repeat, a function takes
`groups`, the prompt of each image.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def prompt_groups(ids: np.ndarray) -> np.ndarray:
    """[n] str ids "<prompt>/<repeat>" to [n] int, a number per prompt."""
    return np.unique([str(i).rsplit("/", 1)[0] for i in ids], return_inverse=True)[1]


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of independent values [n] and its standard error; rows that have none (NaN) are left out. NaN where too few
    are left."""
    values = np.asarray(values, dtype=np.float64)
    values = values[~np.isnan(values)]
    mean = float(np.mean(values)) if len(values) else float("nan")
    return mean, float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else float("nan")


def flat(value: Any) -> Any:
    """A figure as JSON has it; None for one that is not finite, as where one batch shows no spread."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def means(**columns: np.ndarray) -> dict[str, float]:
    """`<name>` and `<name>_se` of every column [n], its rows independent."""
    figures: dict[str, float] = {}
    for name, values in columns.items():
        figures[name], figures[f"{name}_se"] = mean_error(values)
    return figures


def mean_and_error(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Mean of values [n] and its standard error, clustered by `groups` [n]; the error is NaN for fewer than two groups.

    The mean is a ratio (sum of values over images), so the error is that of the group's sums of residuals: with one
    image per group it is sd / sqrt(n).
    """
    values = np.asarray(values, dtype=np.float64)
    mean = values.mean()
    count = len(np.unique(groups))
    if count < 2:
        return float(mean), float("nan")
    residual = np.bincount(groups, values - mean)
    return float(mean), float(np.sqrt((residual**2).sum() * count / (count - 1)) / len(values))


def ratio_and_error(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """sum(above) / sum(below) over batches [n] and its standard error, by linearisation; NaN for a single batch."""
    ratio, count = float(above.sum() / below.sum()), len(above)
    if count < 2:
        return ratio, float("nan")
    residual = above - above.sum() / below.sum() * below
    return ratio, float(np.sqrt((residual**2).sum() * count / (count - 1)) / below.sum())


def bootstrap_interval(
    values: np.ndarray, groups: np.ndarray, count: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of values [n], groups resampled with replacement."""
    sums, sizes = np.bincount(groups, np.asarray(values, dtype=np.float64)), np.bincount(groups)
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]
    drawn = np.random.default_rng([seed, 1]).integers(0, len(sums), (count, len(sums)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def half_samples(groups: np.ndarray, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Indices of `count` random halves of the groups, without replacement."""
    names, rng = np.unique(groups), np.random.default_rng([seed, 2])
    for _ in range(count):
        yield np.flatnonzero(np.isin(groups, rng.permutation(names)[: len(names) // 2]))


def half_jackknife(
    statistic: Callable[[np.ndarray], np.ndarray], groups: np.ndarray, count: int = 200, seed: int = 0
) -> np.ndarray:
    """Standard error of statistic(indices), a vector, by the delete-half jackknife (Shao & Tu 1995, sec. 2.3).

    Not the bootstrap: a repeated image collapses nearest-neighbour balls and covariance ranks. On Gaussian features (d
    = 128, 200 repetitions) the true standard deviations of FID and recall were 0.057 and 0.0113 at n = 128; this gave
    0.068 and 0.0110, the bootstrap 0.111 and 0.0186; at n = 64: 0.095 and 0.0128, this 0.108 and 0.0132, the bootstrap
    0.182 and 0.0241.
    """
    total = len(np.unique(groups))
    if total < 4:
        return np.full_like(np.atleast_1d(statistic(np.arange(len(groups)))), np.nan, dtype=np.float64)
    values = np.stack([np.atleast_1d(statistic(rows)) for rows in half_samples(groups, count, seed)])
    kept = total // 2
    return values.std(0) * np.sqrt(kept / (total - kept))
