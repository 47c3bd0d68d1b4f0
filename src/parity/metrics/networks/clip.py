"""The embedded CLIP: an open_clip model of our own configuration, read by CLIP-score and as FID's feature extractor."""

import json
import tempfile
from pathlib import Path
from typing import Any

import open_clip

from parity.models.discrete.text import VOCAB

CONTEXT = 24  # caption tokens, end token included
SIDE = 64  # pixels of a picture, each way
MODEL_CONFIG = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIDE, "layers": 4, "width": 192, "head_width": 48, "patch_size": 8},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCAB, "width": 128, "heads": 4, "layers": 3},
}


def build() -> Any:
    """Freshly initialised; pixels in [-1, 1], token ids as from `parity.embedded.text.token_ids`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "parity-scenes.json").write_text(json.dumps(MODEL_CONFIG))
        open_clip.add_model_config(folder)
        return open_clip.create_model("parity-scenes")
