"""Tokens to pictures: the image decoder over one shard."""

import argparse
import importlib

from parity.base.files import read_json, write_arrays
from parity.decode.records import read_shard


def run(a: argparse.Namespace) -> None:
    """Writes ids and pixels uint8 [n, H, W, 3]."""
    shard = read_shard(a.shard)
    painter = importlib.import_module(f"parity.models.{a.kind}.load").painter(read_json(a.checkpoint), a.device)
    write_arrays(a.out, ids=shard.ids, pixels=painter.pictures(shard.tokens))
