"""xAR: xAR-*.pth, bare tensors with the buffers that the released network computes, and kl16.ckpt. Cells of 8 x 8
tokens, as released: four places an image."""

from pathlib import Path
from typing import Any

import torch

from parity.models.continuous.xar import XARConfig, XARNet
from parity.stand_ins import kl16, pairs
from parity.stand_ins.tensors import drawn


def write(folder: Path) -> dict[str, str]:
    files = kl16.write(folder)
    for part, name, blocks, seed in (("target", "xAR-H", 2, 3), ("draft", "xAR-B", 1, 4)):
        state = drawn(XARNet(XARConfig(width=64, heads=1, encoder=blocks, decoder=blocks)), seed)
        computed = {"mask": torch.ones(1, 1, 256, 256), "rope.freqs_cos": torch.ones(256, 64)}
        torch.save({**state, **computed}, folder / f"{name}.pth")
        files[part] = f"{name}.pth"
    return files


def entry(folder: Path) -> dict[str, Any]:
    """What a section `continuous` says of it, converted."""
    return pairs.entry("xar", write(folder), folder)
