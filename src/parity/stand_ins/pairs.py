"""What a configuration says of a stand-in of a continuous pair: its files, converted as a user converts them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.models.continuous.published import convert


def entry(model: str, files: Mapping[str, str], folder: Path) -> dict[str, Any]:
    paths = {part: folder / file for part, file in files.items()}
    target, draft, kl, tokenizer = (paths.get(part) for part in ("target", "draft", "kl", "tokenizer"))
    assert target is not None
    convert(model, target, draft, kl, folder / "weights", tokenizer)
    return {"folder": str(folder / "weights")}
