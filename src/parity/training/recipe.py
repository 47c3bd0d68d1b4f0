"""What a recipe is, and what one run of it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from parity.base.errors import ParityError

UNCONDITIONAL = 0.1  # share of captions and labels that are dropped in training, for guidance
Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One run of a recipe. `scheme` is what an ablation changes of it, for recipes that have one."""

    name: str
    work: Path  # what recipes write, and read of each other
    steps: int
    batch: int
    examples: int
    seed: int = 0
    threads: int = 1
    scheme: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.work / f"{self.name}.safetensors"

    def weights(self, recipe: str) -> Path:
        """What another recipe wrote; ParityError if it has not yet."""
        file = self.work / f"{recipe}.safetensors"
        if not file.exists():
            raise ParityError(f"{file}: no such file, and {self.name} reads it; run recipe {recipe} first")
        return file


@dataclass(frozen=True)
class Recipe:
    """What `loop.fit` needs to know of a model.

    net       what is trained; its state is the checkpoint's
    loss      of a step: (step, rng) to a scalar and figures for the log. `rng` is of (seed, step, *stream) alone, so
              that a run that was killed goes on with the same batches
    finish    of the trained net, in inference mode: figures for the log, and the configuration for the header
    stream    tells a recipe's draws from another's
    peak      learning rate after `warmup` steps, from where it follows half a cosine
    average   of the weights, an exponential mean that replaces them in the end; 0 for none
    hidden    pattern of the names of matrices that Muon trains, None for none; AdamW trains all else
    after     called with the number of each step that was made
    held_out  a figure for the log, every `held_out_every` steps
    every     steps between two rows of the log
    published the part of `net` whose weights are written; None for all of it
    memory    tensors outside the net that a run which was killed must find as they were
    """

    net: nn.Module
    loss: Callable[[int, np.random.Generator], tuple[Tensor, Figures]]
    finish: Callable[[], tuple[Figures, dict[str, Any]]]
    stream: tuple[int, ...]
    peak: float
    average: float = 0.998
    warmup: int = 100
    weight_decay: float = 0.02
    hidden: str | None = None
    after: Callable[[int], None] = lambda step: None
    held_out: Callable[[], float] | None = None
    held_out_every: int = 500
    every: int = 50
    published: nn.Module | None = None
    memory: tuple[Tensor, ...] = ()
