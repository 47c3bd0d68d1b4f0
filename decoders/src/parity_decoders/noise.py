"""Counter-based random numbers: a draw is a function of (seed, prompt, use, index), never of the order of calls.

So the result for a prompt does not depend on its batch, its shard, or an interruption. Two decoders that ask for the
same (use, index) get the same number, which is how coupled decoders equal plain sampling token for token.

The generator is SplitMix64 (Steele, Lea & Flood 2014): each (row, use, index) names a stream, its elements are
consecutive counters. Arithmetic of 64-bit words gives the same bits on every device. torch has no stable keyed
generator that takes tensors of keys and counters. On a CPU numpy's integers are several times faster than torch's.

A word is converted as a signed integer over 2^64 to a centred number x in [-1/2, 1/2]. The uniform is x - floor(x), so
positive x are its small numbers, and negative x those of its complement. Both are rounded relative to their own size,
so a token of probability p is drawn with probability p also where p is 1e-9, in float32 as in float64.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_decoders.errors import DecodingError

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; products wrap modulo 2^64
MIX1, MIX2 = -4658895280553007687, -7723592293110705685  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ARRAYS = {n: np.uint64(n % (1 << 64)) for n in (GOLDEN, MIX1, MIX2)}
BLOCK = 16384  # words that are mixed at once on a CPU, so that they stay in a core's cache
SMALLEST = 2.0**-65  # takes the place of 0, which one word of 2^64 gives
# what a number is for; each use has a stream of its own
USES = ("sample", "accept", "draft", "branch", "order", "retry", "draft race")


def _mix(z: Any, scratch: np.ndarray | None = None) -> Any:
    """Apply SplitMix64's finaliser to words (int64 tensors, or uint64 arrays), in place. scratch: memory for an array
    of their shape."""
    array = isinstance(z, np.ndarray)
    for shift, factor in ((30, MIX1), (27, MIX2), (31, None)):
        # the shifts bring zeros from the left
        z ^= np.right_shift(z, shift, out=scratch) if array else (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        if factor is not None:
            z *= ARRAYS[factor] if array else factor
    return z


def _mix_blocks(stream: np.ndarray, counters: np.ndarray, floats: np.ndarray) -> None:
    """Mix the words stream [R, 1] + counters [n] and store them as signed integers in floats [R, n]; block by block, in
    a core's cache."""
    n = len(counters)
    rows = max(1, BLOCK // max(n, 1))
    memory = np.empty((2, min(rows, len(stream)) * min(n, BLOCK)), np.uint64)
    for row, column in product(range(0, len(stream), rows), range(0, n, BLOCK)):
        block = floats[row : row + rows, column : column + BLOCK]
        words, scratch = memory[:, : block.size].reshape(2, *block.shape)
        np.add(stream[row : row + rows], counters[column : column + BLOCK], out=words)
        block[...] = _mix(words, scratch).view(np.int64)


def _wrap_to_int64(n: int) -> int:
    """Return n modulo 2^64 as a signed 64-bit number."""
    return (n + (1 << 63)) % (1 << 64) - (1 << 63)


def _largest_below_one(dtype: torch.dtype) -> float:
    """Return the largest number of a dtype below 1."""
    return 1 - torch.finfo(dtype).eps / 2


def _make_uniform(x: Tensor) -> Tensor:
    """Turn centred numbers into U(0, 1), in place."""
    return x.sub_(x.floor()).clamp_(SMALLEST, _largest_below_one(x.dtype))


def _make_exponential(x: Tensor) -> Tensor:
    """Turn centred numbers into unit exponentials, in place: -log(1 - v), where v = ceil(x) - x."""
    return x.sub_(x.ceil()).clamp_(-_largest_below_one(x.dtype), -SMALLEST).log1p_().neg_()


def _make_normal(x: Tensor) -> Tensor:
    """Turn centred numbers into standard normals, in place, each tail from the numbers near 0."""
    return x.copy_(torch.special.ndtri(x.abs().clamp_(min=SMALLEST)).copysign_(-x))


class Noise:
    """Random numbers for a batch of rows: a function of a row's key, the `use` and the `index`.

    `use` is one of USES; `index` is int64 [B, ...], or [1, ...] for all rows: a step, a position, or both in one
    number.
    """

    def __init__(self, keys: Tensor, dtype: torch.dtype = torch.float32, by_numpy: bool = True):
        """Set keys [B] int64, one a row, and the dtype of exponentials and normals: float32 or float64, of the same
        words. by_numpy: whether a CPU computes words by numpy, which a recorded pass cannot repeat."""
        self.keys, self.dtype = keys, dtype
        self.array = by_numpy and keys.device.type == "cpu"
        self.streams = self._make_streams()  # [USES, B] keys of each use
        self.counters: Any = ()  # counters of a stream's elements, in words

    def _words(self, x: Tensor) -> Any:
        """View an int64 tensor as words: a uint64 array on a CPU, else the tensor itself."""
        return x.numpy().view(np.uint64) if self.array else x

    def _draw(self, use: str, index: Tensor, n: int, dtype: torch.dtype, convert: Callable[[Tensor], Tensor]) -> Tensor:
        """Draw n numbers for each row and index, [B, ..., n]; `convert` makes them of centred numbers, in place. Raises
        DecodingError for a use that is not in USES."""
        if use not in USES:
            raise DecodingError(f"noise use {use!r}: allowed: {', '.join(USES)}")
        if len(self.counters) < n:
            # `| 0`: compiled code would multiply an index of 32 bits, where GOLDEN has no place
            numbers = torch.arange(1, n + 1, device=self.keys.device) | 0
            self.counters = self._words(numbers * GOLDEN)
        golden, one = (ARRAYS[n] if self.array else n for n in (GOLDEN, MIX1))
        keys = self._words(self.streams[USES.index(use)]).reshape(-1, *[1] * (index.ndim - 1))
        stream = _mix((self._words(index) * one ^ keys) + golden)
        if self.array:
            x = torch.empty(*stream.shape, n, dtype=dtype, device=self.keys.device)
            _mix_blocks(stream.reshape(-1, 1), self.counters[:n], x.numpy().reshape(-1, n))
        else:
            x = _mix(stream[..., None] + self.counters[:n]).to(dtype)
        return convert(x.mul_(2.0**-64))

    def _make_streams(self) -> Tensor:
        """Make the keys [USES, B] of each use's streams."""
        first = torch.arange(1, len(USES) + 1, device=self.keys.device) * GOLDEN
        keys: Tensor = _mix(self.keys + first[:, None])
        return keys

    def take(self, rows: Tensor) -> "Noise":
        """Return the noise of the rows with these numbers [n]."""
        return Noise(self.keys[rows], self.dtype, self.array)

    def replace(self, rows: Tensor, keys: Tensor) -> None:
        """Replace the keys of the rows with these numbers [n], in place."""
        self.keys = self.keys.index_copy(0, rows, keys)
        self.streams.copy_(self._make_streams())  # in place, where a captured pass reads it

    def uniform(self, use: str, index: Tensor) -> Tensor:
        """Draw U(0, 1) [B, ...], one a row and index; float64 for every dtype, because `u * q < p` shall hold with
        probability p / q also where that is next to 0 or to 1."""
        return self._draw(use, index, 1, torch.float64, _make_uniform)[..., 0]

    def exponential(self, use: str, index: Tensor, n: int) -> Tensor:
        """Draw n unit exponentials a row and index, [B, ..., n]: `argmax(weights / exponential)` is a draw from
        `weights` (a draw)."""
        return self._draw(use, index, n, self.dtype, _make_exponential)

    def normal(self, use: str, index: Tensor, n: int) -> Tensor:
        """Draw n standard normals a row and index, [B, ..., n], by the inverse of their distribution function."""
        return self._draw(use, index, n, self.dtype, _make_normal)


def check_seed(seed: Any) -> int:
    """Return a seed as an int. Raises DecodingError unless it is a whole number, of Python or numpy, from 0 to
    2**63 - 1: -1, which means a random seed elsewhere, is none."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= int(seed) < 1 << 63:
        raise DecodingError(f"seed: {seed!r}; allowed: a whole number from 0 to 2**63 - 1")
    return int(seed)


def counted_noise(
    seed: int,
    rows: range,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    by_numpy: bool = True,
) -> Noise:
    """Make the noise of rows that have no prompt, keyed by their numbers and a seed or any other whole number of 64
    bits; the equality tests draw samples with it. by_numpy: see `Noise`."""
    keys = torch.arange(rows.start, rows.stop, dtype=torch.int64, device=device)
    # a product of tensors wraps modulo 2^64
    return Noise(_mix(keys * GOLDEN + torch.full_like(keys, _wrap_to_int64(int(seed))) * MIX2), dtype, by_numpy)
