"""Counter-based random numbers: a draw is a function of (seed, prompt, use, index), never of the order of calls.

So the result for a prompt does not depend on its batch, its shard, or an interruption. Two decoders that ask for the
same (use, index) get the same number, which is how coupled decoders equal plain sampling token for token.

The generator is SplitMix64 (Steele, Lea & Flood 2014): each (row, use, index) names a stream, its elements are
consecutive counters. Arithmetic of 64-bit words gives the same bits on every device. torch has no stable keyed
generator that takes tensors of keys and counters. On a CPU numpy's integers are several times faster than torch's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_decoders.errors import DecodingError

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; products wrap modulo 2^64
MIX1, MIX2 = -4658895280553007687, -7723592293110705685  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ARRAYS = tuple(np.uint64(n % (1 << 64)) for n in (GOLDEN, MIX1, MIX2))
# what a number is for; each use has a stream of its own
USES = ("sample", "accept", "draft", "branch", "order", "retry", "draft race")


def _shift_right(z: Any, n: int) -> Any:
    """Shift words (int64 tensors, or uint64 arrays) right by n bits, with zeros from the left."""
    return z >> n if isinstance(z, np.ndarray) else (z >> n).bitwise_and_((1 << (64 - n)) - 1)


def _mix(z: Any, leading: int = 64) -> Any:
    """Apply SplitMix64's finaliser to words, in place; its last step is left out if no more than 31 `leading` bits are
    needed."""
    _, one, two = ARRAYS if isinstance(z, np.ndarray) else (GOLDEN, MIX1, MIX2)
    for shift, factor in ((30, one), (27, two)):
        z ^= _shift_right(z, shift)
        z *= factor
    if leading > 31:  # the last step does not change the leading bits
        z ^= _shift_right(z, 31)
    return z


def _convert_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Convert words below 2^bits exactly to floats: to float64 for 53 bits, else to float32 by way of int32, which is
    fastest."""
    return words.astype(np.float64) if bits == 53 else words.astype(np.int32).astype(np.float32)


def _wrap_to_int64(n: int) -> int:
    """Return n modulo 2^64 as a signed 64-bit number."""
    return (n + (1 << 63)) % (1 << 64) - (1 << 63)


class Noise:
    """Random numbers for a batch of rows: a function of a row's key, the `use` and the `index`.

    `use` is one of USES; `index` is int64 [B, ...], or [1, ...] for all rows: a step, a position, or both in one
    number.
    """

    def __init__(self, keys: Tensor, dtype: torch.dtype = torch.float32):
        """Set keys [B] int64, one a row, and dtype: float32 (24 random bits, the leading ones of float64's 53) or
        float64."""
        self.keys, self.dtype = keys, dtype
        self.bits = 53 if dtype == torch.float64 else 24
        self.array = keys.device.type == "cpu"
        self.streams: dict[str, Any] = {}  # [B] keys of each use, in words
        self.counters: Any = ()  # counters of a stream's elements, in words

    def _words(self, x: Tensor) -> Any:
        """View an int64 tensor as words: a uint64 array on a CPU, else the tensor itself."""
        return x.numpy().view(np.uint64) if self.array else x

    def _uniform(self, use: str, index: Tensor, n: int) -> Tensor:
        """Draw n numbers of U(0, 1) for each row and index, [B, ..., n]. Raises DecodingError for a use that is not in
        USES."""
        if use not in self.streams:
            if use not in USES:
                raise DecodingError(f"noise use {use!r}: allowed: {', '.join(USES)}")
            self.streams[use] = self._words(_mix(self.keys + _wrap_to_int64((USES.index(use) + 1) * GOLDEN)))
        if len(self.counters) < n:
            self.counters = self._words(torch.arange(1, n + 1, device=self.keys.device) * GOLDEN)
        golden, one, _ = ARRAYS if self.array else (GOLDEN, MIX1, MIX2)
        keys = self.streams[use].reshape(-1, *[1] * (index.ndim - 1))
        stream = _mix((self._words(index) * one ^ keys) + golden)
        words = _shift_right(_mix(stream[..., None] + self.counters[:n], self.bits), 64 - self.bits)
        uniform: Any = _convert_words(words, self.bits) if self.array else words.to(self.dtype)
        uniform += 0.5
        uniform *= 2.0**-self.bits  # the result is never 0; in float32 the largest rounds to 1
        return torch.from_numpy(uniform) if self.array else uniform

    def take(self, rows: Tensor) -> "Noise":
        """Return the noise of the rows with these numbers [n]."""
        return Noise(self.keys[rows], self.dtype)

    def replace(self, rows: Tensor, keys: Tensor) -> None:
        """Replace the keys of the rows with these numbers [n], in place."""
        self.keys = self.keys.index_copy(0, rows, keys)
        self.streams.clear()

    def uniform(self, use: str, index: Tensor) -> Tensor:
        """Draw U(0, 1) [B, ...], one a row and index."""
        return self._uniform(use, index, 1)[..., 0]

    def exponential(self, use: str, index: Tensor, n: int) -> Tensor:
        """Draw n unit exponentials a row and index, [B, ..., n]: `argmax(weights / exponential)` is a draw from
        `weights` (a race)."""
        return self._uniform(use, index, n).log_().neg_().clamp_(min=torch.finfo(self.dtype).tiny)

    def normal(self, use: str, index: Tensor, n: int) -> Tensor:
        """Draw n standard normals a row and index, [B, ..., n], by the inverse of their distribution function."""
        below_one = 1 - torch.finfo(self.dtype).eps / 2
        return torch.special.ndtri(self._uniform(use, index, n).clamp_(max=below_one))


def counted_noise(
    seed: int, rows: range, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Noise:
    """Make the noise of rows that have no prompt, keyed by their numbers and a seed; the equality tests draw samples
    with it."""
    keys = torch.arange(rows.start, rows.stop, dtype=torch.int64, device=device)
    return Noise(_mix(keys * GOLDEN + torch.tensor(seed) * MIX2), dtype)
