"""Keys of random numbers: what `base.noise` counts from, and numpy's generators are seeded with. Without torch."""

import hashlib


def derive_row_key(seed: int, prompt: str) -> int:
    """Derive the 64-bit key of a row from the run's seed and the prompt's id."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()[:8], "little", signed=True)
