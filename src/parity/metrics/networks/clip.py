"""The embedded CLIP: an open_clip model of our own configuration, read by CLIP-score and as FID's feature extractor."""

from pathlib import Path
from typing import Any

import open_clip

from parity.base.weights import load_weights
from parity.embedded.tokenizer import VOCAB

CONTEXT = 24  # caption tokens, end token included
SIDE = 64  # pixels of a picture, each way
MODEL_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIDE, "layers": 4, "width": 192, "head_width": 48, "patch_size": 8},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCAB, "width": 128, "heads": 4, "layers": 3},
}


def build() -> Any:
    """Freshly initialised; pixels in [-1, 1], token ids as from `parity.embedded.tokenizer.token_ids`."""
    return open_clip.CLIP(**MODEL_CONFIG)


def load(file: Path, device: str = "cpu") -> Any:
    """With the weights of a file; ParityError unless they fit."""
    clip = build()
    load_weights(clip, file)
    return clip.eval().to(device)
