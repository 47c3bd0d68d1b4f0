"""Errors of figures: known values, what counts as independent, intervals that cover; t-tests that see a difference."""

import numpy as np
import pytest

from parity.metrics import estimates
from parity.metrics.estimates import columns_of, compare


def test_error_of_a_mean_is_sd_over_root_n_and_counts_prompts_not_images():
    x = np.random.default_rng(0).standard_normal(50)
    mean, error = estimates.mean_and_error(x, np.arange(50))
    assert mean == pytest.approx(x.mean()) and error == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert estimates.mean_error(x) == pytest.approx((mean, error))
    assert estimates.mean_and_error(x.repeat(4), np.arange(50).repeat(4))[1] == pytest.approx(error)
    assert estimates.mean_error(x.repeat(4))[1] < 0.6 * error  # as if they were independent
    assert np.isnan(estimates.mean_and_error(x, np.zeros(50, dtype=int))[1])


def test_rows_without_a_value_are_left_out_and_too_few_have_no_error():
    assert columns_of(estimates.means(x=np.array([1.0, np.nan, 3.0]))) == {"x": 2.0, "x_se": pytest.approx(1.0)}
    assert [estimates.flat(v) for v in estimates.mean_error(np.array([5]))] == [5.0, None]
    assert [estimates.flat(v) for v in estimates.mean_error(np.array([np.nan]))] == [None, None]
    assert estimates.flat(np.int64(3)) == 3 and isinstance(estimates.flat(np.int64(3)), int)


def test_error_of_a_ratio_is_near_its_spread():
    """Of sums over 40 batches of unlike length, 400 times."""
    rng = np.random.default_rng(0)

    def draw():
        below = rng.uniform(1, 3, 40)
        return estimates.ratio_and_error(2 * below + rng.normal(size=40), below)

    values, errors = np.array([draw() for _ in range(400)]).T
    assert values.mean() == pytest.approx(2, abs=0.02) and errors.mean() == pytest.approx(values.std(), rel=0.15)
    assert np.isnan(estimates.ratio_and_error(np.ones(1), np.ones(1))[1])


def test_bootstrap_interval_covers():
    """Nominal 95%; under 85% of 200 has probability below 1e-6 at 95%."""
    hits = 0
    for s in range(200):
        drawn = np.random.default_rng(s).standard_normal(40)
        low, high = estimates.bootstrap_interval(drawn, np.arange(40), count=400, seed=s)
        hits += low <= 0 <= high
    assert hits >= 170


def test_half_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).standard_normal(61)
    error = estimates.half_jackknife(lambda rows: x[rows].mean(), np.arange(61), count=4000)
    assert error[0] == pytest.approx(x.std(ddof=1) / np.sqrt(61), rel=0.05)


def test_t_tests_see_a_difference_and_bear_constants():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    assert compare(a, rng.normal(size=200))["p_welch"] > 0.01
    assert compare(a + 0.5, rng.normal(size=200))["p_welch"] < 1e-3
    shared = 10 * rng.normal(size=200)
    moved = compare(shared + a + 0.5, shared + rng.normal(size=200))
    assert moved["p_paired"] < 1e-3 < 0.05 < moved["p_welch"]
    same = np.full(5, 3.0)
    assert compare(same, same) == {"difference": 0.0, "p_welch": 1.0, "p_paired": 1.0}
    assert compare(same, same + 1)["p_welch"] == 0.0
