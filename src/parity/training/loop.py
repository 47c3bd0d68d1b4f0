"""What every recipe shares: the Scenes arrays, a resumable loop, and how trained weights are published."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.base import files as storage
from parity.embedded import scenes


def scene_arrays(cache: Path, first: int, count: int, test: bool, processes: int = 1) -> tuple[list[str], np.ndarray]:
    """Captions and pictures uint8 [count, 64, 64, 3] of `count` seeds from `first`; kept in `cache`."""
    file = cache / f"scenes-{first}-{count}-{'test' if test else 'train'}.npz"
    if not file.exists():
        with Pool(processes) as pool:
            drawn = pool.starmap(scenes.example, [(seed, test) for seed in range(first, first + count)], chunksize=256)
        cache.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as stream:
            np.savez(stream, captions=np.array([c for c, _ in drawn]), pictures=np.stack([p for _, p in drawn]))
        part.replace(file)
    with np.load(file) as data:
        return data["captions"].tolist(), data["pictures"]


def to_pictures(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [B, H, W, 3] to float [B, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


@contextmanager
def short_bf16() -> Iterator[None]:
    """bf16 for sequences of tens of tokens, with attention as matrix products: its fused kernel takes 8 times as long backwards on a CPU."""
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        yield


def cosine(step: int, steps: int, warmup: int, peak: float, floor: float = 0.02) -> float:
    """Learning rate at a step: linear warm-up, then half a cosine down to `floor` of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def train(
    modules: dict[str, torch.nn.Module],
    loss: Callable[[int], tuple[torch.Tensor, dict[str, float]]],
    *,
    steps: int,
    peak: float,
    checkpoint: Path,
    weight_decay: float = 0.02,
    betas: tuple[float, float] = (0.9, 0.95),
    warmup: int = 100,
    average: float = 0.0,
    minutes: float = float("inf"),
    every: int = 50,
    after: Callable[[int], None] = lambda step: None,
    hidden: Callable[[str], bool] = lambda name: False,
) -> Iterator[dict[str, float]]:
    """AdamW with cosine decay over `loss(step)`; yields a row of figures every `every` steps.

    Matrices that `hidden` names ("module.parameter") are trained by Muon instead, with AdamW's rate.

    Resumes from `checkpoint`, which is replaced whole every few minutes: a killed run continues from there, with the same batches
    (`loss` draws them from the step number). `average` > 0 keeps an exponential mean of the weights and leaves it in the modules.
    """
    named = {f"{k}.{name}": p for k, m in modules.items() for name, p in m.named_parameters() if p.requires_grad}
    parameters = list(named.values())
    matrices = [p for name, p in named.items() if p.ndim == 2 and hidden(name)]
    other = [p for name, p in named.items() if not (p.ndim == 2 and hidden(name))]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [
                {"params": [p for p in other if p.ndim > 1], "weight_decay": weight_decay},
                {"params": [p for p in other if p.ndim < 2], "weight_decay": 0.0},
            ],
            betas=betas,
        )
    ]
    if matrices:
        optimisers.append(torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    mean = [p.detach().clone() for p in parameters] if average else []
    step, spent, saved = 0, 0.0, time.monotonic()

    def save(step: int) -> None:
        state = {
            "step": step,
            "spent": spent,
            "optimisers": [o.state_dict() for o in optimisers],
            "mean": mean,
            **{k: m.state_dict() for k, m in modules.items()},
        }
        part = checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(checkpoint)

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        step, spent, mean = state["step"], state["spent"], state["mean"]
        for optimiser, kept in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        for name, module in modules.items():
            module.load_state_dict(state[name])
    begin = time.monotonic()
    while step < steps:
        for group in [g for o in optimisers for g in o.param_groups]:
            group["lr"] = cosine(step, steps, warmup, peak)
        value, figures = loss(step)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for m, p in zip(mean, parameters, strict=False):
            m.lerp_(p.detach(), 1 - min(average, (step + 1) / (step + 10)))
        after(step)
        step += 1
        if step % every == 0 or step == steps:
            now = time.monotonic()
            yield {"step": step, "loss": value.item(), **figures, "minutes": (spent + now - begin) / 60}
            if now - saved > 180 or step == steps:
                spent, begin, saved = spent + now - begin, now, now
                save(step)
            if (spent + now - begin) / 60 > minutes:
                break
    with torch.no_grad():
        for m, p in zip(mean, parameters, strict=False):
            p.copy_(m)


def fit(
    net: torch.nn.Module,
    loss: Callable[[int], tuple[torch.Tensor, dict[str, float]]],
    held_out: Callable[[], float],
    out: Path,
    *,
    steps: int,
    peak: float,
    hidden: Callable[[str], bool],
) -> list[dict[str, float]]:
    """`train` of one network with an average of its weights, the checkpoint beside `out`; the log, printed as it grows, held-out figures in it."""
    log = []
    for row in train(
        {"net": net}, loss, steps=steps, peak=peak, checkpoint=out.with_suffix(".pt"), average=0.998, hidden=hidden
    ):
        if row["step"] % 500 == 0:
            with torch.inference_mode():
                row["held_out"] = held_out()
        print(row, flush=True)
        log.append(row)
    return log


def publish(module: torch.nn.Module, file: Path, config: dict) -> None:
    """Weights as fp16 safetensors, whole or not at all, with the configuration in the header."""
    state = {k: v.detach().half().contiguous() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    storage.publish(file, save(state, metadata={"config": json.dumps(config, sort_keys=True)}))
