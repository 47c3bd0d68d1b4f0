"""Data that ships with the package, and the weights that were trained on it: a folder for each kind of model."""

import hashlib
from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # holds <kind>/<part>.safetensors, and their digests in <kind>/SHA256SUMS


def is_held_out(*names: str) -> bool:
    """Return whether a caption, or a pair of names, is held out from training: one in eight, by its hash."""
    return hashlib.sha256("\n".join(names).encode()).digest()[0] % 8 == 0
