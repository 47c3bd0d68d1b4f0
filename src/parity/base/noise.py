"""Counter-based random numbers: a draw is a function of (seed, prompt, use, index), never of the order of calls.

So the result for a prompt cannot depend on the batch it stands in, on the shard, or on where a run was interrupted, and
two decoders that ask for the same (use, index) see the same number (which is how coupled decoders can equal plain
sampling token for token).

The generator is SplitMix64 (Steele, Lea & Flood 2014): each (row, use, index) names a stream, its elements are
consecutive counters. Everything is int64 tensor arithmetic, so the bits are the same on every device; torch has no
stable keyed generator that takes a tensor of keys and of counters.
"""

import torch
from torch import Tensor

from parity.base.keys import row_key

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; products wrap modulo 2^64
MIX1, MIX2 = -4658895280553007687, -7723592293110705685  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
USES = ("sample", "accept", "draft", "branch", "order", "retry")  # what a number is for; each is a stream of its own


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place; shifts are logical."""
    for shift, factor in ((30, MIX1), (27, MIX2)):
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    return z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))


def _signed(n: int) -> int:
    """n modulo 2^64 as an int64 holds it."""
    return (n + (1 << 63)) % (1 << 64) - (1 << 63)


class Noise:
    """Random numbers for a batch of rows.

    keys [B] int64, one a row; dtype float32 (24 random bits, the leading ones of float64's 53) or float64. `use` is one
    of USES; `index` is int64 [B, ...], or [1, ...] for all rows: a step, a position, or both in one number.
    """

    def __init__(self, keys: Tensor, dtype: torch.dtype = torch.float32):
        self.keys, self.dtype = keys, dtype
        self.bits = 53 if dtype == torch.float64 else 24
        self.streams: dict[str, Tensor] = {}  # [B] a use's keys
        self.counters = torch.empty(0, dtype=torch.int64, device=keys.device)  # of a stream's elements

    def _uniform(self, use: str, index: Tensor, n: int) -> Tensor:
        if use not in self.streams:
            self.streams[use] = _mix(self.keys + _signed((USES.index(use) + 1) * GOLDEN))
        if len(self.counters) < n:
            self.counters = torch.arange(1, n + 1, device=self.keys.device) * GOLDEN
        keys = self.streams[use].view(-1, *[1] * (index.ndim - 1))
        stream = _mix((index * MIX1).bitwise_xor(keys).add_(GOLDEN))
        words = _mix(stream[..., None] + self.counters[:n])
        whole = (words >> (64 - self.bits)).bitwise_and_((1 << self.bits) - 1).to(self.dtype)
        return whole.add_(0.5).mul_(2.0**-self.bits)  # never 0; in float32 the largest rounds to 1

    def take(self, rows: Tensor) -> "Noise":
        """The noise of some of the rows."""
        return Noise(self.keys[rows], self.dtype)

    def uniform(self, use: str, index: Tensor) -> Tensor:
        """U(0, 1), one a row and index: [B, ...]."""
        return self._uniform(use, index, 1)[..., 0]

    def exponential(self, use: str, index: Tensor, n: int) -> Tensor:
        """Unit exponentials [B, ..., n]: `argmax(weights / exponential)` is a draw from `weights` (a race)."""
        return self._uniform(use, index, n).log_().neg_().clamp_(min=torch.finfo(self.dtype).tiny)

    def normal(self, use: str, index: Tensor, n: int) -> Tensor:
        """Standard normals [B, ..., n], by the inverse of their distribution function."""
        below_one = 1 - torch.finfo(self.dtype).eps / 2
        return torch.special.ndtri(self._uniform(use, index, n).clamp_(max=below_one))


def batch_noise(seed: int, prompts: list[str], device: str = "cpu", dtype: torch.dtype = torch.float32) -> Noise:
    """Noise of a batch of prompt ids under a run's seed."""
    return Noise(torch.tensor([row_key(seed, p) for p in prompts], device=device), dtype)


def counted_noise(
    seed: int, rows: range, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Noise:
    """Noise of many anonymous rows, keyed by number: what the equality tests draw their samples with."""
    keys = torch.arange(rows.start, rows.stop, dtype=torch.int64, device=device)
    return Noise(_mix(keys * GOLDEN + torch.tensor(seed) * MIX2), dtype)
