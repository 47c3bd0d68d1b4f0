"""Tokens to pictures: the image decoder over a cell's shards."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from parity.base.files import read_json, write_arrays
from parity.decode.shard_io import read_shard


def render(kind: str, shards: Sequence[Path], checkpoint: Path, device: str, folder: Path) -> list[Path]:
    """A file of ids and pixels uint8 [n, H, W, 3] for each shard, under its name; [] where tokens are no pictures."""
    module = importlib.import_module(f"parity.models.{kind}.load")
    if not hasattr(module, "painter"):
        return []
    painter = module.painter(read_json(checkpoint), device)
    for file in shards:
        shard = read_shard(file)
        write_arrays(folder / file.name, ids=shard.ids, pixels=painter.pictures(shard.tokens))
    return [folder / file.name for file in shards]
