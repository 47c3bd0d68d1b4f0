"""Random numbers: a draw is a function of its key, its use and its index."""

import numpy as np
import pytest
import torch
from parity_certify.seeding import row_key
from scipy import stats

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_words_are_splitmix64s_on_a_cpu_and_elsewhere(dtype):
    """Against integers of any size; a shift that is not logical, or no last step, is noticed."""

    def mixed(z: int, last: int = 31, signed: bool = False) -> int:
        z %= 1 << 64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (last, 1)):
            low = z - (1 << 64) if signed and z >> 63 else z
            z = (z ^ low >> shift) * factor % (1 << 64)
        return z

    def reference(key: int, index: int, **how: bool | int) -> list[int]:
        golden = 0x9E3779B97F4A7C15
        stream = mixed((index * 0xBF58476D1CE4E5B9 ^ mixed(key + 2 * golden)) + golden)  # of "accept"
        return [mixed(stream + k * golden, **how) >> 64 - bits for k in range(1, 9)]

    def reference_of(**how: bool | int) -> list[list[list[int]]]:
        return [[reference(k, i, **how) for i in index[0].tolist()] for k in (5, 2**63 + 9)]

    bits, index = 53 if dtype == torch.float64 else 24, torch.tensor([[0, 1, 2**40, -3]])
    noise = Noise(torch.tensor([5, 9 - 2**63]), dtype)
    here = noise._uniform("accept", index, 8)
    elsewhere = Noise(noise.keys, dtype)
    elsewhere.array = False  # as on any other device
    assert torch.equal(here, elsewhere._uniform("accept", index, 8))
    assert torch.equal(here, (torch.tensor(reference_of()).to(dtype) + 0.5) * 2.0**-bits)
    assert (reference_of() == reference_of(last=64)) == (bits == 24)  # the last step, left out where it changes nothing
    assert reference_of() != reference_of(signed=True)


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
