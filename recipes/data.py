"""What recipes learn from: pictures, tokens and texts."""

from functools import cache
from multiprocessing import Pool
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.embedded import classes, scenes, stories
from parity.models.continuous import kl
from parity.models.discrete import vq
from parity.models.discrete.vq import to_pictures
from recipes.loop import Job

FIRST, FIRST_TEST = 1_000_000, 3_000_000  # seeds of pictures; those below are free for others
PICTURES_TESTED, TOKENS_TESTED, CLASSES_TESTED, TEXTS_TESTED = 1000, 256, 500, 128
CROP = 32


@cache
def drawn(generator: ModuleType, count: int, test: bool, threads: int) -> list[Any]:
    """Draw `count` examples of a generator, from seeds in a row: their columns, pictures and numbers as arrays."""
    first = FIRST_TEST if test else FIRST
    with Pool(threads) as pool:
        rows = pool.starmap(generator.draw_example, [(first + i, test) for i in range(count)], chunksize=256)
    return [list(c) if isinstance(c[0], str) else np.stack(c) for c in zip(*rows, strict=True)]


def pictures(job: Job, test: bool = False) -> tuple[list[str], np.ndarray]:
    """Draw captions and pictures uint8 [n, 64, 64, 3] of Scenes: those of training, or those of captions held out."""
    captions, pixels = drawn(scenes, PICTURES_TESTED if test else job.examples, test, job.threads)
    return captions, pixels


def class_pictures(job: Job, test: bool = False) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Draw classes [n], captions and pictures uint8 [n, 64, 64, 3] of class-conditional Scenes."""
    labels, captions, pixels = drawn(classes, CLASSES_TESTED if test else job.examples, test, job.threads)
    return labels, captions, pixels


@torch.no_grad()
def scene_tokens(job: Job, grid: int, test: bool = False) -> Tensor:
    """Encode Scenes as tokens int64 [n, grid^2], their pictures reduced to what so many tokens cover."""
    net, pixels = vq.load(job.weights("vq")), pictures(job, test)[1]
    pixels, side = pixels[:TOKENS_TESTED] if test else pixels, grid * net.config.stride
    parts = (scenes.reduce_pictures(pixels[i : i + 64], side) for i in range(0, len(pixels), 64))
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cat([net.encode(to_pictures(part)) for part in parts])


@torch.no_grad()
def class_latents(job: Job, test: bool = False) -> tuple[Tensor, Tensor]:
    """Encode class-conditional Scenes as tokens float32 [n, L, D], with their classes [n]."""
    net, (labels, _, pixels) = kl.load(job.weights("kl")), class_pictures(job, test)
    parts = [net.encode(to_pictures(pixels[i : i + 64])) for i in range(0, len(pixels), 64)]
    return torch.cat(parts), torch.from_numpy(labels)


def texts(job: Job, test: bool = False) -> Tensor:
    """Encode packed texts as word numbers [n, 128]."""
    first, count = (10_000_000, TEXTS_TESTED) if test else (0, job.examples)
    number = {w: i for i, w in enumerate(stories.list_words())}
    return torch.tensor([[number[w] for w in stories.draw_text(first + i, test)] for i in range(count)])


def autoencoder_batch(job: Job, pixels: np.ndarray, step: int, rng: np.random.Generator) -> Tensor:
    """Draw the pictures [B, 3, H, W] of a step of an image tokenizer.

    The first four fifths of the steps see random crops of 32x32 (the networks are convolutional, and a crop costs a
    quarter), the rest whole pictures; `job.batch` counts crops.
    """
    if step >= 0.8 * job.steps:
        batch = pixels[rng.integers(0, len(pixels), job.batch // 4)]
    else:
        rows = rng.integers(0, len(pixels), job.batch)
        corners = rng.integers(0, pixels.shape[1] - CROP + 1, (job.batch, 2))
        batch = np.stack([pixels[r, y : y + CROP, x : x + CROP] for r, (y, x) in zip(rows, corners, strict=True)])
    return to_pictures(batch).to(memory_format=torch.channels_last)


def reconstruction_error(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean absolute error of pictures y made from x, and the loss: this, squares and edges."""
    edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
    l1 = (y - x).abs().mean()
    return l1, l1 + 2 * F.mse_loss(y, x) + edges
