"""What the recipes of both image tokenizers share: crops first, whole pictures last, and how two pictures differ.

The first four fifths of the steps see crops of 32x32 (the networks are convolutional, and a crop costs a quarter), the
rest whole pictures.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.training.data import to_pictures
from parity.training.recipe import Job

CROP = 32


def crops(pixels: np.ndarray, rng: np.random.Generator, batch: int) -> np.ndarray:
    """`batch` random 32x32 crops, uint8."""
    rows, corners = rng.integers(0, len(pixels), batch), rng.integers(0, pixels.shape[1] - CROP + 1, (batch, 2))
    return np.stack([pixels[r, y : y + CROP, x : x + CROP] for r, (y, x) in zip(rows, corners, strict=True)])


def examples(job: Job, pixels: np.ndarray, step: int, rng: np.random.Generator) -> Tensor:
    """The pictures [B, 3, H, W] of a step; the batch counts crops."""
    early = step < 0.8 * job.steps
    part = crops(pixels, rng, job.batch) if early else pixels[rng.integers(0, len(pixels), job.batch // 4)]
    return to_pictures(part).to(memory_format=torch.channels_last)


def unlike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How pictures differ from what was made of them: the mean absolute error, and with squares and edges the loss."""
    edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
    l1 = (y - x).abs().mean()
    return l1, l1 + 2 * F.mse_loss(y, x) + edges
