"""Random numbers are functions of their key, use and index."""

import math

import numpy as np
import pytest
import torch
from parity_certify.seeding import derive_row_key
from parity_decoders.noise import Noise, _make_uniform


def mix_word(key: int, use: int, index: int, counter: int) -> int:
    """Compute SplitMix64's word of a key, use (from 1), index and counter (from 1), in integers of any size."""
    golden, one, two = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    def mix(z: int) -> int:
        z = (z ^ z % 2**64 >> 30) * one % 2**64
        z = (z ^ z >> 27) * two % 2**64
        return z ^ z >> 31

    stream = mix((index * one ^ mix((key + use * golden) % 2**64)) + golden & 2**64 - 1)
    return mix((stream + counter * golden) % 2**64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_equal_on_every_device_and_in_every_release(dtype):
    """SplitMix64 of two keys, compared with numbers computed in integers of any size."""
    keys, index = [5, 9 - 2**63], [0, 2**40, -3]
    on_cpu, on_device = Noise(torch.tensor(keys), dtype), Noise(torch.tensor(keys), dtype)
    on_device.array = False  # now it draws by torch's ops, as on devices other than the CPU
    numbers = torch.tensor([index])
    for draw in ("exponential", "normal"):
        x, y = (getattr(noise, draw)("accept", numbers, 20_000) for noise in (on_cpu, on_device))
        assert torch.equal(x, y)
    assert torch.equal(on_cpu.uniform("accept", numbers), on_device.uniform("accept", numbers))
    expected = [[mix_word(key, 2, i, 1) / 2**64 for i in index] for key in keys]
    assert (on_cpu.uniform("accept", numbers) - torch.tensor(expected, dtype=torch.float64)).abs().max() < 2**-52
    last = on_cpu.exponential("accept", numbers, 20_000)[1, 2, -1].item()
    assert last == pytest.approx(-math.log(mix_word(keys[1], 2, -3, 20_000) / 2**64), rel=4 * torch.finfo(dtype).eps)


class Words(Noise):
    """Noise whose words are given, in place of those of its keys."""

    def __init__(self, words: list[int], dtype: torch.dtype):
        super().__init__(torch.zeros(1, dtype=torch.int64), dtype)
        self.words = torch.from_numpy(np.array(words, np.uint64).view(np.int64))

    def _draw(self, use, index, n, dtype, convert):
        return convert(self.words.to(dtype)[None, None].mul_(2.0**-64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_words_give_numbers_that_are_exact_relative_to_their_size(dtype):
    """Exponentials near 0, both tails of a normal, uniforms near 0, down to a word of 1. Must fail: 24 bits of
    a word."""
    rare = [2**64 - 1 - k for k in (1, 5, 18, 10**4, 10**9, 10**12)]  # uniforms next to 1: small exponentials
    noise, zero = Words([0, 1, 5, 10**9, *rare, 2**64 - 1, 2**63 - 1, 2**63], dtype), torch.zeros(1, 1).long()
    e, z = noise.exponential("sample", zero, 13)[0, 0].double(), noise.normal("sample", zero, 13)[0, 0].double()
    v = torch.tensor([(2**64 - w) / 2**64 for w in rare], dtype=torch.float64)
    tails = torch.tensor([1.0, 5.0], dtype=torch.float64) / 2.0**64
    assert torch.allclose(e[4:10], -torch.log1p(-v), rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert torch.allclose(z[4:10], -torch.special.ndtri(v), rtol=4e-6, atol=0)
    assert torch.allclose(z[1:3], torch.special.ndtri(tails), rtol=4e-6, atol=0)
    assert ((e > 0) & (e < 50)).all() and (z.abs() < 10).all()
    u = noise._draw("accept", zero, 13, torch.float64, _make_uniform)[0, 0]
    assert ((u > 0) & (u < 1)).all() and abs(u[3].item() / (1e9 / 2**64) - 1) < 1e-15


def test_float32_noise_is_float64s_rounded():
    """Exponentials up to log 2, and all normals, to a few units in the last place; larger exponentials as -log of a
    uniform that is rounded to 2^-24. Uniforms are float64 always."""
    keys, index = torch.tensor([derive_row_key(0, str(i)) for i in range(100)]), torch.arange(50)[None]
    narrow, wide = Noise(keys), Noise(keys, torch.float64)
    assert torch.equal(narrow.uniform("sample", index), wide.uniform("sample", index))
    e, exact = narrow.exponential("sample", index, 80).double(), wide.exponential("sample", index, 80)
    assert ((e - exact).abs() <= 2**-22 * exact + torch.where(exact < 0.7, 0, 2**-24 * exact.exp())).all()
    assert e.min() < 1e-5  # where 24 bits would be off by one part in a hundred
    z, exact = narrow.normal("sample", index, 80).double(), wide.normal("sample", index, 80)
    assert ((z - exact).abs() <= 1e-6 * (1 + exact.abs())).all()
