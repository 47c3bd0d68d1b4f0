"""What recipes learn from: pictures, tokens and texts, made once and stored in the working folder.

A file's name holds the digests of the code and of the weights that made it: an edit of a generator, or another
tokenizer, makes it anew.
"""

from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.base.files import whole
from parity.base.weights import sha256
from parity.embedded import classes, scenes, stories
from parity.experiment.code_digest import digest
from parity.models.continuous import kl
from parity.models.discrete import vq
from parity.training.loop import Job

FIRST, FIRST_TEST = 1_000_000, 3_000_000  # seeds of pictures; those below are free for others
PICTURES_TESTED, TOKENS_TESTED, CLASSES_TESTED, TEXTS_TESTED = 1000, 256, 500, 128
CROP = 32


def cached_arrays(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, np.ndarray]:
    """Arrays that are made once, and read from `file` from then on."""
    if not file.exists():
        with whole(file) as part, part.open("wb") as stream:
            np.savez(stream, **make())
    with np.load(file) as data:
        return {k: data[k] for k in data.files}


def to_pictures(pixels: np.ndarray) -> Tensor:
    """uint8 [B, H, W, 3] to float [B, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def drawn(job: Job, generator: ModuleType, test: bool, tested: int, columns: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Columns of the examples that a generator draws from seeds in a row, in as many processes as the job has
    threads."""
    first, count = (FIRST_TEST, tested) if test else (FIRST, job.examples)

    def make() -> dict[str, Any]:
        with Pool(job.threads) as pool:
            rows = pool.starmap(generator.example, [(first + i, test) for i in range(count)], chunksize=256)
        return {k: np.stack(c) for k, c in zip(columns, zip(*rows, strict=True), strict=True)}

    name = generator.__name__.rpartition(".")[2]
    return cached_arrays(job.work / f"{name}-{first}-{count}-{digest(generator.__name__)}.npz", make)


def pictures(job: Job, test: bool = False) -> tuple[list[str], np.ndarray]:
    """Captions and pictures uint8 [n, 64, 64, 3] of Scenes: those of training, or those of captions held out."""
    arrays = drawn(job, scenes, test, PICTURES_TESTED, ("captions", "pictures"))
    return arrays["captions"].tolist(), arrays["pictures"]


def class_pictures(job: Job, test: bool = False) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Classes [n], captions and pictures uint8 [n, 64, 64, 3] of class-conditional Scenes."""
    arrays = drawn(job, classes, test, CLASSES_TESTED, ("labels", "captions", "pictures"))
    return arrays["labels"], arrays["captions"].tolist(), arrays["pictures"]


def scene_tokens(job: Job, grid: int, test: bool = False) -> Tensor:
    """Tokens int64 [n, grid^2] of Scenes, their pictures reduced to what so many tokens cover."""
    file, (_, pixels) = job.weights("vq"), pictures(job, test)
    pixels = pixels[:TOKENS_TESTED] if test else pixels

    def make() -> dict[str, Any]:
        net = vq.load(file)
        side = grid * net.config.stride
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            starts = range(0, len(pixels), 64)
            tokens = torch.cat([net.encode(to_pictures(scenes.reduced(pixels[i : i + 64], side))) for i in starts])
        return {"tokens": tokens.numpy().astype(np.int16)}

    name = f"tokens-{grid}-{'test' if test else job.examples}-{sha256(file)[:8]}-{digest(scenes.__name__)}.npz"
    return torch.from_numpy(cached_arrays(job.work / name, make)["tokens"]).long()


def class_latents(job: Job, test: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens float32 [n, L, D] and classes [n] of class-conditional Scenes."""
    file, (labels, _, pixels) = job.weights("kl"), class_pictures(job, test)

    @torch.inference_mode()
    def make() -> dict[str, Any]:
        net = kl.load(file)
        parts = [net.encode(to_pictures(pixels[i : i + 64])) for i in range(0, len(pixels), 64)]
        return {"tokens": torch.cat(parts).numpy()}

    name = f"latents-{'test' if test else job.examples}-{sha256(file)[:8]}-{digest(classes.__name__)}.npz"
    return torch.from_numpy(cached_arrays(job.work / name, make)["tokens"]), torch.from_numpy(labels)


def texts(job: Job, test: bool = False) -> Tensor:
    """Word numbers [n, 128] of packed texts."""
    first, count = (10_000_000, TEXTS_TESTED) if test else (0, job.examples)

    def make() -> dict[str, Any]:
        number = {w: i for i, w in enumerate(stories.vocabulary())}
        rows = [[number[w] for w in stories.text(first + i, test)] for i in range(count)]
        return {"tokens": np.array(rows, dtype=np.int16)}

    name = f"texts-{first}-{count}-{digest(stories.__name__)}.npz"
    return torch.from_numpy(cached_arrays(job.work / name, make)["tokens"]).long()


def autoencoder_batch(job: Job, pixels: np.ndarray, step: int, rng: np.random.Generator) -> Tensor:
    """The pictures [B, 3, H, W] of a step of an image tokenizer.

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
    """The mean absolute error of pictures y made from x, and the loss: this, squares and edges."""
    edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
    l1 = (y - x).abs().mean()
    return l1, l1 + 2 * F.mse_loss(y, x) + edges
