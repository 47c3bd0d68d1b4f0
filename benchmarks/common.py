"""What the benchmarks of discrete decoders start from."""

from pathlib import Path

import numpy as np
import yaml

from parity.experiment.config import ModelSpec
from parity.inputs.captions import encode
from parity.models import checkpoints


def scenes(images: int) -> tuple[dict, dict[str, np.ndarray]]:
    """The embedded model's manifest, and the first captions encoded as `generate` reads them."""
    manifest = checkpoints.get("scenes", ModelSpec(), Path("results"))
    captions = Path("prompts/scenes.txt").read_text().splitlines()[:images]
    embeddings, valid = encode(manifest, captions, "cpu")
    return manifest, {
        "ids": np.array(captions),
        "captions": np.array(captions),
        "embeddings": embeddings,
        "valid": valid,
    }


def sampling(guidance: float) -> dict[str, float]:
    """Plain sampling at a guidance scale."""
    return {"guidance": guidance, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def variant(text: str) -> tuple[str, dict]:
    """'mtj: {branches: 96}' or 'mtj' as method and options."""
    given = yaml.safe_load(text)
    return next(iter(given.items())) if isinstance(given, dict) else (given, {})
