"""Keys of random numbers: what `base.noise` counts from, and numpy's generators are seeded with. Without torch."""

import hashlib


def derive_row_key(seed: int, prompt: str) -> int:
    """Derive the key of a row, a signed 64-bit integer, from the run's seed and the prompt's id, by SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()[:8], "little", signed=True)
