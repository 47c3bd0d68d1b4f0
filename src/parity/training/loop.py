"""The loop that trains every recipe: seeded, resumable, and ended by weights that are published whole or not at all."""

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.base import files
from parity.base.errors import ParityError
from parity.training.recipe import Job, Recipe

BETAS = (0.9, 0.95)
FLOOR = 0.02  # of the peak rate, where it ends
SAVED_EVERY = 180.0  # seconds between two checkpoints


@contextmanager
def short_bf16() -> Iterator[None]:
    """bf16 for sequences of tens of tokens, with attention as matrix products: its fused kernel takes 8 times as long
    backwards on a CPU."""
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        yield


def cosine(step: int, steps: int, warmup: int, peak: float) -> float:
    """Learning rate at a step: linear warm-up, then half a cosine down to FLOOR of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def optimisers_of(recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW, without decay for what is no matrix; Muon, with AdamW's rate, for the hidden matrices."""
    named = {name: p for name, p in recipe.net.named_parameters() if p.requires_grad}
    pattern = recipe.hidden
    hidden = {name for name, p in named.items() if pattern is not None and p.ndim == 2 and re.search(pattern, name)}
    other = [p for name, p in named.items() if name not in hidden]
    groups = [
        {"params": [p for p in other if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in other if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimisers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=BETAS)]
    if hidden:
        matrices = [p for name, p in named.items() if name in hidden]
        decay = recipe.weight_decay
        optimisers.append(torch.optim.Muon(matrices, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimisers


class Training:
    """What a killed run goes on from: the net, its optimisers, the mean of its weights, what it remembers, the log."""

    def __init__(self, recipe: Recipe):
        self.net, self.optimisers, self.memory = recipe.net, optimisers_of(recipe), recipe.memory
        self.parameters = [p for p in recipe.net.parameters() if p.requires_grad]
        self.mean = [p.detach().clone() for p in self.parameters] if recipe.average else []
        self.step, self.seconds, self.log = 0, 0.0, list[dict[str, float]]()

    def save(self, file: Path, asked: dict[str, Any]) -> None:
        """Replace the checkpoint, whole."""
        state = {"asked": asked, "step": self.step, "seconds": self.seconds, "log": self.log, "mean": self.mean}
        state |= {"optimisers": [o.state_dict() for o in self.optimisers], "net": self.net.state_dict()}
        state |= {"memory": list(self.memory)}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        torch.save(state, part)
        part.replace(file)

    def resume(self, file: Path, asked: dict[str, Any]) -> None:
        """Go on from a checkpoint, if there is one; ParityError for that of a run that was asked for something else."""
        if not file.exists():
            return
        state = torch.load(file, weights_only=True)
        for key, value in asked.items():
            if (said := state.get("asked", {}).get(key)) != value:
                raise ParityError(f"{file}: of a run with {key} = {said}, not {value}; go on with that, or delete it")
        self.step, self.seconds, self.log, self.mean = (state[k] for k in ("step", "seconds", "log", "mean"))
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        self.net.load_state_dict(state["net"])
        for tensor, remembered in zip(self.memory, state["memory"], strict=True):
            tensor.copy_(remembered)

    def learn(self, value: torch.Tensor, rate: float, average: float) -> None:
        """One step along the gradient of `value`."""
        value.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for m, p in zip(self.mean, self.parameters, strict=False):
            m.lerp_(p.detach(), 1 - min(average, (self.step + 1) / (self.step + 10)))

    @torch.no_grad()
    def settle(self) -> None:
        """The mean of the weights replaces them, where one was kept."""
        for m, p in zip(self.mean, self.parameters, strict=False):
            p.copy_(m)


def fit(recipe: Recipe, job: Job, saved_every: float = SAVED_EVERY) -> list[dict[str, float]]:
    """Train `recipe.net` for `job.steps`; the log, printed as it grows.

    Goes on from the checkpoint beside `job.out`, which is replaced every `saved_every` seconds: a run that was killed
    ends with the weights of one that was not.
    """
    training, checkpoint = Training(recipe), job.out.with_suffix(".pt")
    asked = {key: getattr(job, key) for key in ("steps", "batch", "examples", "seed", "scheme")}
    training.resume(checkpoint, asked)
    begin = saved = time.monotonic()
    begin -= training.seconds
    while training.step < job.steps:
        rng = np.random.default_rng([job.seed, training.step, *recipe.stream])
        value, figures = recipe.loss(training.step, rng)
        rate = cosine(training.step, job.steps, recipe.warmup, recipe.peak)
        training.learn(value, rate, recipe.average)
        recipe.after(training.step)
        training.step += 1
        if training.step % recipe.every == 0 or training.step == job.steps:
            now = time.monotonic()
            training.seconds = now - begin
            row = {"step": training.step, "loss": value.item(), **figures, "minutes": training.seconds / 60}
            if recipe.held_out is not None and training.step % recipe.held_out_every == 0:
                with torch.inference_mode():
                    row["held_out"] = recipe.held_out()
            print(row, flush=True)
            training.log.append(row)
            if now - saved > saved_every or training.step == job.steps:
                training.save(checkpoint, asked)
                saved = now
    training.settle()
    return training.log


def publish(module: nn.Module, file: Path, config: dict[str, Any]) -> None:
    """Weights as fp16 safetensors, whole or not at all, with the configuration in the header."""
    state = {k: v.detach().half().contiguous() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    files.publish(file, save(state, metadata={"config": json.dumps(config, sort_keys=True)}))


def train(recipe: Recipe, job: Job) -> list[dict[str, float]]:
    """Train, write the weights and the log beside them, and let the checkpoint go; the log."""
    log = fit(recipe, job)
    with torch.inference_mode():
        figures, config = recipe.finish()
    if figures:
        print(figures, flush=True)
        log.append(figures)
    publish(recipe.net if recipe.published is None else recipe.published, job.out, config)
    asked = {key: getattr(job, key) for key in ("steps", "batch", "examples", "seed", "threads")}
    files.write_json(job.out.with_suffix(".json"), {"log": log, **asked})
    job.out.with_suffix(".pt").unlink(missing_ok=True)
    return log
