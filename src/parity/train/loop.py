"""The loop that trains speculators and recipes: seeded and resumable; weights are published whole or not at all."""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parity.base import files
from parity.base.errors import ParityError
from parity.base.weights import save_weights

BETAS = (0.9, 0.95)
FLOOR = 0.02  # final learning rate, as a share of the peak rate
SAVED_EVERY = 180.0  # seconds between two checkpoints
LOGGED_EVERY = 60.0  # seconds between two rows of the log, at most


@dataclass(frozen=True)
class Job:
    """One run of a recipe. `scheme` holds what else says which run it is, such as the changes of an ablation."""

    name: str
    work: Path  # the folder that recipes write to, and read each other's weights from
    steps: int
    batch: int
    examples: int
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    scheme: dict[str, Any] = field(default_factory=dict)
    minutes: float = math.inf  # training ends after this many, even if it has taken fewer steps

    @property
    def out(self) -> Path:
        return self.work / f"{self.name}.safetensors"

    def find_weights(self, recipe: str) -> Path:
        """Find the weights that another recipe wrote. Raises ParityError if it has not run."""
        file = self.work / f"{recipe}.safetensors"
        if not file.exists():
            raise ParityError(f"{file}: no such file, and {self.name} reads it; run recipe {recipe} first")
        return file


@dataclass(frozen=True)
class Recipe:
    """What `fit` needs to know of a model."""

    net: nn.Module
    # `loss(step, rng)` gives a training step's loss and figures for the log; `rng` is seeded by (seed, step, *stream)
    loss: Callable[[int, np.random.Generator], tuple[Tensor, dict[str, float]]]
    # `finish()` is called once, in inference mode, after training: figures for the log, and the weights' header.
    finish: Callable[[], tuple[dict[str, float], dict[str, Any]]]
    stream: tuple[int, ...]  # numbers in the random seed that differ from recipe to recipe
    peak: float  # learning rate after `warmup` steps; from there it falls as half a cosine, or in a line
    average: float = 0.998  # decay of the moving average of the weights, which replaces them in the end; 0 for none
    warmup: int = 100
    weight_decay: float = 0.02
    linear: bool = False  # whether the learning rate falls in a line, to 0
    hidden: str | None = None  # pattern of the names of matrices that Muon trains; AdamW trains all else
    after_step: Callable[[int], None] = lambda step: None  # called after each step, with its number
    held_out: Callable[[], dict[str, float]] | None = None  # measures figures on held-out data for the log
    held_out_every: int = 500  # steps between two calls of `held_out`, if a multiple of `log_every`
    pays: Callable[[list[dict[str, float]]], bool] = lambda log: True  # by the log, whether training goes on
    log_every: int = 50  # steps between two rows of the log, unless they take long
    published: nn.Module | None = None  # the part of `net` whose weights are written; None for all of it
    memory: tuple[Tensor, ...] = ()  # tensors outside the net that a checkpoint holds too


def reduce_precision(device: str = "cpu") -> torch.autocast:
    """Make the context in which recipes compute in bf16; it does nothing on CPUs of at most AVX2, on which bf16 is
    several times slower than float32."""
    slow = device == "cpu" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "DEFAULT")
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=not slow)


def compute_rate(step: int, steps: int, warmup: int, peak: float, passed: float = 0.0, linear: bool = False) -> float:
    """Compute the learning rate at a step: linear warm-up, then half a cosine down to FLOOR of the peak, or a line to
    0. passed: the share of the time that has passed, if that is the larger one."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = max((step - warmup) / max(1, steps - warmup), min(1.0, passed))
    if linear:
        return peak * (1 - done)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def make_optimisers(recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Make AdamW for all trainable parameters, without weight decay for vectors; matrices whose names match
    `recipe.hidden` get Muon instead, scaled to AdamW's rate. Returns one optimiser, or two."""
    hidden: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, p in recipe.net.named_parameters():
        if p.requires_grad:
            is_hidden = recipe.hidden is not None and p.ndim == 2 and re.search(recipe.hidden, name)
            group = hidden if is_hidden else matrices if p.ndim > 1 else vectors
            group.append(p)
    decay = recipe.weight_decay
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimisers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=BETAS)]
    if hidden:
        optimisers.append(torch.optim.Muon(hidden, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimisers


class Training:
    """The state of a run: the net, its optimisers, the mean of its weights, the recipe's memory, the log."""

    def __init__(self, recipe: Recipe):
        """Start at step 0 with an empty log and a copy of the weights as their mean (none if `recipe.average` is 0)."""
        self.net = recipe.net
        self.optimisers = make_optimisers(recipe)
        self.memory = recipe.memory
        self.parameters = [p for p in recipe.net.parameters() if p.requires_grad]
        self.mean = [p.detach().clone() for p in self.parameters] if recipe.average else []
        self.step = 0
        self.seconds = 0.0
        self.log: list[dict[str, float]] = []

    def save(self, file: Path, request: dict[str, Any]) -> None:
        """Replace the checkpoint `file`, whole or not at all, by the state and `request`, the settings of the run."""
        state = {"asked": request, "step": self.step, "seconds": self.seconds, "log": self.log, "mean": self.mean}
        state |= {"optimisers": [o.state_dict() for o in self.optimisers], "net": self.net.state_dict()}
        with files.replace_whole(file) as partial:
            torch.save(state | {"memory": list(self.memory)}, partial)

    def resume(self, file: Path, request: dict[str, Any]) -> None:
        """Restore the state from the checkpoint `file`; do nothing if it does not exist. Raises ParityError for a
        checkpoint of a run whose settings differ from `request`."""
        if not file.exists():
            return
        state = torch.load(file, weights_only=True)
        for key, value in request.items():
            if (saved := state["asked"][key]) != value:
                raise ParityError(f"{file}: of a run with {key} = {saved}, not {value}; go on with that, or delete it")
        self.step, self.seconds, self.log, self.mean = (state[k] for k in ("step", "seconds", "log", "mean"))
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.net.load_state_dict(state["net"])
        for tensor, saved in zip(self.memory, state["memory"], strict=True):
            tensor.copy_(saved)

    def learn(self, value: Tensor, rate: float, average: float) -> None:
        """Take a step at learning rate `rate` down the clipped gradient of `value`; update the mean of the weights."""
        value.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for m, p in zip(self.mean, self.parameters, strict=False):
            m.lerp_(p.detach(), 1 - min(average, (self.step + 1) / (self.step + 10)))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context manager: the net has the mean of its weights, if there is one."""
        trained = [p.detach().clone() for p in self.parameters] if self.mean else []
        self.copy_weights(self.mean)
        try:
            yield
        finally:
            self.copy_weights(trained)

    @torch.no_grad()
    def copy_weights(self, weights: list[Tensor]) -> None:
        for p, w in zip(self.parameters, weights, strict=False):
            p.copy_(w)


def fit(recipe: Recipe, job: Job, saved_every: float = SAVED_EVERY) -> list[dict[str, float]]:
    """Train `recipe.net` for `job.steps`, or until it no longer pays or `job.minutes` are over; print the log as it
    grows, and return it.

    The run continues from the checkpoint beside `job.out`, if any, which is replaced every `saved_every` seconds: a
    killed run ends with the same weights. In the end the mean of the weights, if the recipe takes one, replaces them.
    """
    training = Training(recipe)
    checkpoint = job.out.with_suffix(".pt")
    request = {key: getattr(job, key) for key in ("steps", "batch", "examples", "seed", "scheme")}
    training.resume(checkpoint, request)
    time_saved = time_logged = time.monotonic()
    start = time_saved - training.seconds
    limit = 60 * job.minutes

    def is_over() -> bool:
        return training.step >= job.steps or training.seconds >= limit

    while not is_over() and recipe.pays(training.log):
        rng = np.random.default_rng([job.seed, training.step, *recipe.stream])
        value, figures = recipe.loss(training.step, rng)
        passed = training.seconds / limit
        rate = compute_rate(training.step, job.steps, recipe.warmup, recipe.peak, passed, recipe.linear)
        training.learn(value, rate, recipe.average)
        recipe.after_step(training.step)
        training.step += 1
        time_now = time.monotonic()
        training.seconds = time_now - start
        is_measured = recipe.held_out is not None and training.step % recipe.held_out_every == 0
        if is_over() or is_measured or not training.step % recipe.log_every or time_now - time_logged > LOGGED_EVERY:
            row = {"step": training.step, "loss": value.item(), **figures, "minutes": training.seconds / 60}
            if is_measured and recipe.held_out is not None:
                with torch.inference_mode(), training.averaged():
                    row |= recipe.held_out()
            left = min(training.seconds / training.step * (job.steps - training.step), limit - training.seconds)
            print(f"{row}, at most {max(0.0, left) / 60:.0f} minutes left", flush=True)
            training.log.append(row)
            time_logged = time_now
        if is_over() or time_now - time_saved > saved_every:
            training.save(checkpoint, request)
            time_saved = time_now
    training.copy_weights(training.mean)
    return training.log


def publish(module: nn.Module, file: Path, config: dict[str, Any]) -> None:
    """Write a module's weights to `file` as fp16 safetensors, whole or not at all, with `config` in the header."""
    state = {k: v.detach().half() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    save_weights(state, file, config)


def train(
    recipe: Recipe, job: Job, write: Callable[[nn.Module, Path, dict[str, Any]], None] = publish
) -> list[dict[str, float]]:
    """Train; `write` the weights, by default to `job.out`, and the log beside it as JSON; remove the checkpoint; return
    the log."""
    log = fit(recipe, job)
    with torch.inference_mode():
        figures, config = recipe.finish()
    if figures:
        print(figures, flush=True)
        log.append(figures)
    write(recipe.net if recipe.published is None else recipe.published, job.out, config)
    sizes = {key: getattr(job, key) for key in ("steps", "batch", "examples", "seed", "threads", "device")}
    files.write_json(job.out.with_suffix(".json"), {"log": log, **sizes})
    job.out.with_suffix(".pt").unlink(missing_ok=True)
    return log
