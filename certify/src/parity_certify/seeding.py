"""Keys of random numbers: what `base.noise` counts from, and numpy's generators are seeded with. Without torch."""

import hashlib
import numbers
from typing import Any

from parity_certify.errors import ParityError

LARGEST_SEED = 2**63 - 1


def check_seed(seed: Any, key: str = "seed") -> int:
    """Return a seed as an int. Raises ParityError, naming `key`, unless it is a whole number (of Python or numpy)
    from 0 to LARGEST_SEED: -1, which means a random seed elsewhere, is none."""
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool) or not 0 <= int(seed) <= LARGEST_SEED:
        raise ParityError(f"{key} {seed!r}: allowed: a whole number from 0 to 2**63 - 1")
    return int(seed)


def pair_seeds(seed: Any, key: str = "seed") -> tuple[int, int]:
    """Return a run's seed, and the next one, on which a rejection is repeated. Raises ParityError: see `check_seed`."""
    first = check_seed(seed, key)
    return first, (first + 1) % (LARGEST_SEED + 1)


def derive_row_key(seed: int, prompt: str) -> int:
    """Derive the key of a row, a signed 64-bit integer, from the run's seed and the prompt's id, by SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()[:8], "little", signed=True)
