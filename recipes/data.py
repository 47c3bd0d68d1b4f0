"""Draw what recipes learn from: images, tokens and texts."""

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
from parity.models.discrete.vq import to_images
from parity.train.loop import Job, reduce_precision

FIRST = 1_000_000  # seed of the first training image; lower seeds are free for other uses
FIRST_TEST = 3_000_000
IMAGES_TESTED, TOKENS_TESTED, CLASSES_TESTED, TEXTS_TESTED = 1000, 256, 500, 128
CROP = 32
UNCONDITIONAL = 0.1  # share of captions and labels that are dropped in training, so that the model can be guided


@cache
def draw_examples(generator: ModuleType, count: int, test: bool, threads: int) -> list[Any]:
    """Draw `count` examples of a generator module of `parity.embedded` from consecutive seeds, in `threads` processes;
    `test`: held-out ones. Returns their columns, as arrays, or as lists where they are strings. Results are cached."""
    first = FIRST_TEST if test else FIRST
    with Pool(threads) as pool:
        rows = pool.starmap(generator.draw_example, [(first + i, test) for i in range(count)], chunksize=256)
    return [list(c) if isinstance(c[0], str) else np.stack(c) for c in zip(*rows, strict=True)]


def draw_images(job: Job, test: bool = False) -> tuple[list[str], np.ndarray]:
    """Draw captions and images uint8 [n, 64, 64, 3] of Scenes: `job.examples`, or 1000 held-out ones if `test`."""
    captions, pixels = draw_examples(scenes, IMAGES_TESTED if test else job.examples, test, job.threads)
    return captions, pixels


def draw_class_images(job: Job, test: bool = False) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Draw classes [n], captions and images of class-conditional Scenes, like `draw_images`, but 500 if `test`."""
    labels, captions, pixels = draw_examples(classes, CLASSES_TESTED if test else job.examples, test, job.threads)
    return labels, captions, pixels


@torch.no_grad()
def encode_scenes(job: Job, grid: int, test: bool = False) -> Tensor:
    """Encode images of Scenes with `vq` as tokens int64 [n, grid^2]; images are first reduced to the pixels that
    these cover. `test`: 256 held-out ones."""
    net = vq.load(job.find_weights("vq")).to(job.device)
    pixels = draw_images(job, test)[1][: TOKENS_TESTED if test else None]
    side = grid * net.config.stride
    batches = (scenes.reduce_images(pixels[i : i + 64], side) for i in range(0, len(pixels), 64))
    with reduce_precision(job.device):
        return torch.cat([net.encode(to_images(batch).to(job.device)) for batch in batches])


@torch.no_grad()
def encode_class_images(job: Job, test: bool = False) -> tuple[Tensor, Tensor]:
    """Encode images of class-conditional Scenes with `kl`: tokens float32 [n, L, D] and the classes [n]."""
    net = kl.load(job.find_weights("kl"))
    labels, _, pixels = draw_class_images(job, test)
    latents = [net.encode(to_images(pixels[i : i + 64])) for i in range(0, len(pixels), 64)]
    return torch.cat(latents), torch.from_numpy(labels)


def draw_texts(job: Job, test: bool = False) -> Tensor:
    """Draw Stories and Snippets as word numbers int64 [n, 128]: `job.examples` for training, 128 held-out if `test`."""
    first, count = (10_000_000, TEXTS_TESTED) if test else (0, job.examples)
    numbers = {w: i for i, w in enumerate(stories.list_words())}
    return torch.tensor([[numbers[w] for w in stories.draw_text(first + i, test)] for i in range(count)])


def draw_autoencoder_batch(job: Job, pixels: np.ndarray, step: int, rng: np.random.Generator) -> Tensor:
    """Draw the images [B, 3, H, W] of a training step of an image tokenizer.

    The first four fifths of the steps see random crops of 32x32 (the networks are convolutional, and a crop costs a
    quarter), the rest whole images; `job.batch` counts crops.
    """
    if step >= 0.8 * job.steps:
        batch = pixels[rng.integers(0, len(pixels), job.batch // 4)]
    else:
        rows = rng.integers(0, len(pixels), job.batch)
        corners = rng.integers(0, pixels.shape[1] - CROP + 1, (job.batch, 2))
        batch = np.stack([pixels[r, y : y + CROP, x : x + CROP] for r, (y, x) in zip(rows, corners, strict=True)])
    return to_images(batch).to(memory_format=torch.channels_last)


def compute_reconstruction_error(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute two scalars: the mean absolute error of reconstructions y of images x [B, C, H, W], and the training
    loss, which is this error plus twice the squared error plus the absolute error of differences between neighbours."""
    edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
    l1 = (y - x).abs().mean()
    return l1, l1 + 2 * F.mse_loss(y, x) + edges
