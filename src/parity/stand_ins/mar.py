"""MAR: mar_*/checkpoint-last.pth as its training leaves them, weights, moving average, optimizer and arguments, and
kl16.ckpt."""

import argparse
from pathlib import Path
from typing import Any

import torch

from parity.models.continuous.mar import MARConfig, MARNet
from parity.stand_ins import kl16, pairs
from parity.stand_ins.tensors import drawn


def sizes(blocks: int, grid: int = 4) -> MARConfig:
    """One head of 64 numbers."""
    trunk = {"width": 64, "heads": 1, "encoder": blocks, "decoder": blocks, "buffer": 8}
    return MARConfig(grid=grid, **trunk, head_width=32, head_depth=blocks)


def write(folder: Path) -> dict[str, str]:
    files = kl16.write(folder)
    for part, name, blocks, seed in (("target", "mar_huge", 2, 1), ("draft", "mar_base", 1, 2)):
        average = drawn(MARNet(sizes(blocks)), seed)
        plain = {k: v + 0.01 for k, v in average.items()}
        optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
        said = argparse.Namespace(model=name, ema_rate=0.9999, diffloss_d=blocks)
        (folder / name).mkdir()
        kept = {"model": plain, "model_ema": average, "optimizer": optimizer, "epoch": 399, "args": said}
        torch.save(kept, folder / name / "checkpoint-last.pth")
        files[part] = f"{name}/checkpoint-last.pth"
    return files


def entry(folder: Path) -> dict[str, Any]:
    """What a section `continuous` says of it, converted."""
    return pairs.entry("mar", write(folder), folder)
