"""What metrics read of a cell of a continuous model: images of classes, and the classes that a classifier reads."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.embedded.scenes import draw_ground_truth
from parity.metrics.networks import classifier
from parity.metrics.samples import Files
from parity.models.continuous import load


class Sample(Files):
    @cached_property
    def classes(self) -> list[str]:
        """The class [n] that each image was to show."""
        loaded = load.Loaded(self.manifest, torch.device("cpu"))
        return [loaded.class_of(image) for image in self.images]

    @cached_property
    def images(self) -> list[int]:
        return [int(image) for image in self.shard.ids]

    @cached_property
    def costs(self) -> dict[str, np.ndarray]:
        """What target and draft cost, [n] an image, as the job counted and timed them."""
        return {k: v for k, v in self.shard.columns.items() if k.startswith(("target_", "draft_"))}

    @cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Features [n, d], logits [n, classes], and whether an image is read as what it was to show: right [n]; of
        published models what the declared networks see (`metrics.judges`)."""
        if "classifier" in self.manifest["files"]:
            return outputs_of(self.pixels, self.manifest, self.device, self.images)
        return self.judge(self.classes if "captions" in self.manifest else None)


def draw(prompts: list[Path], count: int, manifest: Mapping[str, Any]) -> np.ndarray:
    """Draw fresh images uint8 [count, H, W, 3] of the embedded classes in turn; no prompts are read. None are drawn
    ([0, 1, 1, 3]) for a model of other classes."""
    if "classifier" not in manifest["files"]:
        return np.zeros((0, 1, 1, 3), np.uint8)
    return np.stack([draw_ground_truth(load.make_caption(i), seed=70_000 + i) for i in range(count)])


def outputs_of(
    pixels: np.ndarray, manifest: Mapping[str, Any], device: str, images: Sequence[int] = ()
) -> dict[str, np.ndarray]:
    """Compute features and logits of the classifier for images uint8 [n, H, W, 3] of the images of these numbers, or
    of the first n, and whether it reads the right class [n]; {} for a model whose files name no classifier."""
    if "classifier" not in manifest["files"]:
        return {}
    outputs = classifier.load(Path(manifest["files"]["classifier"]), device).read(pixels)
    labels = load.Loaded(manifest, torch.device("cpu")).labels(images or range(len(pixels))).numpy()
    return outputs | {"right": outputs["logits"].argmax(1) == labels}
