"""Data that ships with the package, and the weights that were trained on it: a folder for each kind of model."""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # holds <kind>/<part>.safetensors, and their digests in <kind>/SHA256SUMS
