"""Random numbers are functions of their key, use and index."""

import numpy as np
import pytest
import torch
from parity_certify.seeding import derive_row_key
from parity_decoders.noise import Noise, counted_noise
from scipy import stats

from parity.base.row_noise import batch_noise


def test_noise_of_a_row_does_not_depend_on_its_batch():
    index = torch.tensor([[3, 9], [4, 1], [0, 0]])
    batched = batch_noise(5, ["a", "b", "c"]).exponential("sample", index, 7)
    single = [batch_noise(5, [p]).exponential("sample", index[i : i + 1], 7) for i, p in enumerate("abc")]
    assert torch.equal(batched, torch.cat(single))
    prefix = batch_noise(5, ["a", "b", "c"]).exponential("sample", index, 3)
    assert torch.equal(batched[..., :3], prefix)  # a shorter draw has the first numbers of a longer one


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
    """KS over the keys; lag correlations over index, key and vocabulary below 4 standard errors."""
    n = 200_000
    u = counted_noise(0, range(n)).uniform("accept", torch.zeros(1, 1, dtype=torch.int64))[:, 0].numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    table = counted_noise(0, range(2000)).exponential("sample", torch.arange(25)[None], 20).neg().exp().numpy()
    for axis in range(3):
        a, b = np.take(table, range(1, table.shape[axis]), axis), np.take(table, range(table.shape[axis] - 1), axis)
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / a.size**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_equal_on_every_device_and_in_every_release(dtype):
    """SplitMix64 of two keys, compared with numbers computed in integers of any size."""
    keys = torch.tensor([5, 9 - 2**63])
    index = torch.tensor([[0, 2**40, -3]])
    on_cpu, on_device = Noise(keys, dtype), Noise(keys, dtype)
    on_device.array = False  # now it draws by torch's ops, as on devices other than the CPU
    assert torch.equal(on_cpu._uniform("accept", index, 8), on_device._uniform("accept", index, 8))
    expected = [[0.2401369240738141, 0.7572628740332044, 0.5153020076902035]]
    expected += [[0.2234756194797734, 0.9119565085514199, 0.8262191115458966]]
    assert (on_cpu.uniform("accept", index) - torch.tensor(expected)).abs().max() < 1e-7


def test_float32_noise_is_the_leading_bits_of_float64():
    keys = torch.tensor([derive_row_key(0, str(i)) for i in range(1000)])
    index = torch.arange(50)[None]
    narrow, wide = Noise(keys).uniform("sample", index), Noise(keys, torch.float64).uniform("sample", index)
    assert (narrow.double() - wide).abs().max() < 2**-23
    assert Noise(keys).exponential("sample", index, 8).min() > 0


def test_normals_are_normal_and_never_infinite():
    n = 200_000
    x = counted_noise(1, range(n)).normal("draft", torch.zeros(1, 1, dtype=torch.int64), 1).flatten().numpy()
    assert np.isfinite(x).all()
    assert stats.kstest(x, "norm").pvalue > 1e-4
    assert stats.kstest(x + 0.02, "norm").pvalue < 1e-4  # the test does reject numbers that are shifted by 0.02
