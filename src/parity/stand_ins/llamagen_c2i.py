"""LlamaGen's released files for classes of ImageNet: the transformer and the tokenizer, pickled."""

from pathlib import Path
from typing import Any

from parity.stand_ins.llamagen import entry_of, pickled


def write(folder: Path) -> dict[str, Path]:
    """LlamaGen-B, whose pictures here have 8 x 8 tokens."""
    files = {"transformer": Path("c2i_B_256.pt"), "vq": Path("vq_ds16_c2i.pt")}
    pickled(folder, str(files["transformer"]), str(files["vq"]), prefix=1, caption_dim=0, classes=1000)
    return files


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return entry_of(folder, write(folder))
