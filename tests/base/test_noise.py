"""Random numbers: a draw is a function of its key, its use and its index."""

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.keys import row_key
from parity.base.noise import Noise, batch_noise, counted_noise


def test_noise_of_a_row_does_not_depend_on_its_batch():
    index = torch.tensor([[3, 9], [4, 1], [0, 0]])
    together = batch_noise(5, ["a", "b", "c"]).exponential("sample", index, 7)
    alone = [batch_noise(5, [p]).exponential("sample", index[i : i + 1], 7) for i, p in enumerate("abc")]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(
        together[..., :3], batch_noise(5, ["a", "b", "c"]).exponential("sample", index, 3)
    )  # shorter is a prefix


def test_noise_streams_differ():
    zero = torch.zeros(1, 1, dtype=torch.int64)
    draws = [
        batch_noise(s, [p]).uniform(use, i + zero).item()
        for s in (0, 1)
        for p in "ab"
        for use in ("sample", "accept", "draft")
        for i in range(4)
    ]
    assert len(set(draws)) == len(draws)


def test_noise_is_uniform_and_uncorrelated():
    """KS over 10^6 keys; lag correlations over index, key and vocabulary below 4 standard errors."""
    n = 1_000_000
    u = counted_noise(0, range(n)).uniform("accept", torch.zeros(1, 1, dtype=torch.int64))[:, 0].numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    table = counted_noise(0, range(2000)).exponential("sample", torch.arange(25)[None], 20).neg().exp().numpy()
    for axis in range(3):
        a, b = np.take(table, range(1, table.shape[axis]), axis), np.take(table, range(table.shape[axis] - 1), axis)
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / a.size**0.5


def test_float32_noise_is_the_leading_bits_of_float64():
    keys = torch.tensor([row_key(0, str(i)) for i in range(1000)])
    index = torch.arange(50)[None]
    narrow, wide = Noise(keys).uniform("sample", index), Noise(keys, torch.float64).uniform("sample", index)
    assert (narrow.double() - wide).abs().max() < 2**-23
    assert Noise(keys).exponential("sample", index, 8).min() > 0


def test_what_a_number_is_for_must_be_known():
    with pytest.raises(ValueError, match="not in"):
        batch_noise(0, ["a"]).uniform("another", torch.zeros(1, 1, dtype=torch.int64))


def test_normals_are_normal_and_never_infinite():
    n = 200_000
    x = counted_noise(1, range(n)).normal("draft", torch.zeros(1, 1, dtype=torch.int64), 1).flatten().numpy()
    assert np.isfinite(x).all() and stats.kstest(x, "norm").pvalue > 1e-4
    assert stats.kstest(x + 0.02, "norm").pvalue < 1e-4  # and the test has the power to see less
