"""Class-conditional Scenes: pictures of one large plain thing on any ground; the class is its shape and colour, 60 in all.

What a class leaves open (place, shade, ground and its style) is drawn; captions whose hash is 0 modulo 8 are held out, as ever.
"""

import os
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from parity.embedded.scenes import BACKGROUNDS, COLOURS, SHAPES, Scene, Thing, held_out, render

CLASSES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)


def scene(label: int, rng: np.random.Generator, test: bool | None = None) -> Scene:
    """A scene of a class; `test` asks for a held-out (or a training) caption. ValueError for a class with none."""
    colour, shape = CLASSES[label].split()
    grounds = [(b, g) for b in BACKGROUNDS for g in COLOURS if g != colour]
    found = [Scene((Thing(shape, colour, "plain", "large"),), "", "", b, g) for b, g in grounds]
    found = [s for s in found if test is None or held_out(s.caption) == test]
    if not found:
        raise ValueError(f"class {CLASSES[label]}: no caption is {'held out' if test else 'left for training'}")
    return found[rng.integers(len(found))]


def example(seed: int, test: bool | None = None) -> tuple[int, str, np.ndarray]:
    """Class, caption and picture uint8 [64, 64, 3] of a seed."""
    rng = np.random.default_rng([seed, 66])
    label = int(rng.integers(len(CLASSES)))
    drawn = scene(label, rng, test)
    return label, drawn.caption, render(drawn, rng)


def class_arrays(
    cache: Path, first: int, count: int, test: bool, processes: int = 1
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Classes [n], captions and pictures uint8 [n, 64, 64, 3] of `count` seeds from `first`; kept in `cache`."""
    file = cache / f"classes-{first}-{count}-{'test' if test else 'train'}.npz"
    if not file.exists():
        with Pool(processes) as pool:
            drawn = pool.starmap(example, [(seed, test) for seed in range(first, first + count)], chunksize=256)
        cache.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        labels, captions, pictures = zip(*drawn, strict=True)
        with part.open("wb") as stream:
            np.savez(stream, labels=np.array(labels), captions=np.array(captions), pictures=np.stack(pictures))
        part.replace(file)
    with np.load(file) as data:
        return data["labels"], data["captions"].tolist(), data["pictures"]
