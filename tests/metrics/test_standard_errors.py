"""Standard errors, intervals and t-tests on data of known answers; tables of rows."""

import numpy as np
import pandas as pd
import pytest

from parity.base.errors import ParityError
from parity.metrics import estimates
from parity.metrics.estimates import compare
from parity.metrics.tables import read_table, write_table


def test_error_of_a_mean_counts_prompts_and_not_images():
    x = np.random.default_rng(0).standard_normal(50)
    mean, error = estimates.mean_and_error(x, np.arange(50))
    assert mean == pytest.approx(x.mean())
    assert error == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert estimates.mean_error(x) == pytest.approx((mean, error))
    assert estimates.mean_and_error(x.repeat(4), np.arange(50).repeat(4))[1] == pytest.approx(error)
    assert estimates.mean_error(x.repeat(4))[1] < 0.6 * error  # smaller, since repeats are taken for independent here
    assert np.isnan(estimates.mean_and_error(x, np.zeros(50, dtype=int))[1])


def test_error_of_a_ratio_is_near_its_spread():
    """Ratios of sums over 40 batches of unequal length, 400 times."""
    rng = np.random.default_rng(0)

    def draw():
        """Estimate a ratio that is about 2, and its error, from 40 random pairs."""
        denominators = rng.uniform(1, 3, 40)
        return estimates.ratio_and_error(2 * denominators + rng.normal(size=40), denominators)

    values, errors = np.array([draw() for _ in range(400)]).T
    assert values.mean() == pytest.approx(2, abs=0.02)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)
    assert np.isnan(estimates.ratio_and_error(np.ones(1), np.ones(1))[1])


def test_bootstrap_interval_covers():
    """The nominal coverage is 95 %, at which fewer than 170 of 200 have probability below 1e-6."""
    hits = 0
    for s in range(200):
        drawn = np.random.default_rng(s).standard_normal(40)
        low, high = estimates.bootstrap_interval(drawn, np.arange(40), count=400, seed=s)
        hits += low <= 0 <= high
    assert hits >= 170


def test_t_tests_see_a_difference_and_allow_constants():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    assert compare(a, rng.normal(size=200))["p_welch"] > 0.01
    assert compare(a + 0.5, rng.normal(size=200))["p_welch"] < 1e-3
    shared = 10 * rng.normal(size=200)
    moved = compare(shared + a + 0.5, shared + rng.normal(size=200))
    assert moved["p_paired"] < 1e-3 < 0.05 < moved["p_welch"]
    constant = np.full(5, 3.0)
    assert compare(constant, constant) == {"difference": 0.0, "p_welch": 1.0, "p_paired": 1.0}
    assert compare(constant, constant + 1)["p_welch"] == 0.0


COLUMNS = {
    "id": np.array(["a", "b", "c"]),
    "caption": np.array(["é", "", "x y"]),
    "nfe": np.arange(3),
    "clip": np.array([0.5, np.nan, 1.0], dtype=np.float32),
    "step": [[1, 2], [], [3]],
}


def test_a_table_is_read_back_as_plain_parquet(tmp_path):
    write_table(tmp_path / "t.parquet", COLUMNS)
    table = read_table(tmp_path / "t.parquet")
    assert table.equals(pd.read_parquet(tmp_path / "t.parquet"))
    assert table["nfe"].tolist() == [0, 1, 2]
    assert [list(s) for s in table["step"]] == COLUMNS["step"]
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "theirs.parquet")
    assert read_table(tmp_path / "theirs.parquet")["x"].tolist() == [1]
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "gone.parquet")


def test_a_changed_bit_and_a_cut_table_are_one_line(tmp_path):
    write_table(tmp_path / "t.parquet", {"x": np.random.default_rng(0).random(1000)})
    data = (tmp_path / "t.parquet").read_bytes()
    for bit in np.linspace(8 * 200, 8 * (len(data) - 1000), 20).astype(int):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "t.parquet").write_bytes(changed)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
    for cut in (b"", data[:-9], data[:40]):
        (tmp_path / "t.parquet").write_bytes(cut)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
