"""What an experiment will need, before anything is loaded: downloads, memory, images, hours of a GPU where they are known.

    snakemake plan --configfile workflow/experiments/sjd-table1.yaml

Memory is that of weights, of keys and values for the batch with guidance, and of the laws of a window: what decides
whether a batch fits. Files that are not here count as pins.yaml says. Hours are images x tokens x passes a token x
milliseconds a pass, where `parity.gpu` measured passes of a network of this size (gpu.json).
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.base.command import one_line
from parity.base.errors import ParityError
from parity.experiment import cells as C
from parity.experiment import checks, pins, weights
from parity.experiment.options import PLACES, options
from parity.experiment.schema import Config, ImageSection, ModelSpec

GPU = Path("gpu.json")
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes of a number
COPIES = (
    6  # of a window's laws that are held at once, float32: logits of both halves, p, q, a filtered and a sorted copy
)


@dataclass(frozen=True)
class Needs:
    """Of a model in an experiment; bytes, None where nothing here tells them."""

    model: str
    download: int | None
    weights: int | None
    row: int | None  # of an image of a batch: its keys and values, and the laws of a window
    images: int
    hours: float | None

    def memory(self, batch: int) -> int | None:
        return None if self.weights is None or self.row is None else self.weights + batch * self.row

    def largest(self, free: int) -> int | None:
        """The largest batch that fits into `free` bytes."""
        return None if self.weights is None or self.row is None else max(0, free - self.weights) // self.row
