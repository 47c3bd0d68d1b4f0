"""Parts of published models that lie elsewhere, and what a released drafter says of its target. Imports no torch."""

import re
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import foreign_json
from parity.experiment.config_types import PINNED

# of config.json, a drafter's and its target's
WORDS = ("model_type", "vocab_size", "hidden_size", "num_attention_heads")
TOKENS = {"t2i": 256, "t2i2": 1024, "c2i": 576}  # of a picture, by a released drafter's input_type


def check_place(file: str, where: str) -> None:
    """ConfigError for a part elsewhere that no address or pinned repository could be."""
    if not PINNED.fullmatch(file) and not re.fullmatch(r"https?://[^/@\s]+/[^\s]+", file):
        raise ConfigError(
            f"{where} = {file!r}: allowed: https://host/file, or hub:owner/name@commit:path with the 40-hex commit"
        )


def released(path: Path) -> dict[str, Any]:
    """What config.json of a released drafter tells of its target, in the words here, or, where both are folders of
    transformers' layout, in WORDS: a folder, or a file beside it."""
    try:
        said = foreign_json((path if path.is_dir() else path.parent) / "config.json")
        if "input_type" not in said:
            return {word: said[word] for word in WORDS}
        tokens = said.get("block_size") or TOKENS[said["input_type"]]
        return {"vocab": said["vocab_size"], "grid": round(tokens**0.5), "input_type": said["input_type"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
