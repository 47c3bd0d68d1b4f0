"""One cell of the continuous experiment: its images in batches, and what they cost."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import progress, provenance
from parity.base.files import canonical, write_arrays
from parity.base.noise import batch_noise
from parity.decode.continuous import Clocked, run
from parity.decoders.continuous.mar import mar
from parity.experiment.config import needs
from parity.models.continuous.load import Networks
from parity.models.continuous.protocol import Start, draw_order

PACED = 4  # batches of a cell beside which the target alone is timed


def decoder(method: str) -> Any:
    return getattr(importlib.import_module(f"parity.decoders.continuous.{method}"), method)


def decode(spec: dict[str, Any], weights: Path, device: str, threads: int, out: Path) -> None:
    """Images of a cell in batches; the record of each is what it cost. An image's noise is keyed by its number, whatever the batch.

    What a job's seconds are worth depends on what else the machine does, so the target alone is timed beside the first batches, on the same images.
    """
    columns: dict[str, list[np.ndarray]] = {}
    networks, method = Networks(spec["model"], device, weights), decoder(spec["method"])
    draft = needs(spec["method"]) == "draft"
    starts = range(0, spec["images"], spec["batch"])
    for number, i in enumerate(
        progress(starts, len(starts), f"{spec['model']} {spec['method']} {canonical(spec['options'])}")
    ):
        images = range(i, min(i + spec["batch"], spec["images"]))
        pair = networks.pair(images, spec["sampling"], draft)
        noise = batch_noise(spec["seed"], [str(n) for n in images], device)
        order = draw_order(noise, len(images), pair.target.length, pair.target.raster)
        alone = networks.pair(images, spec["sampling"], False)
        if number == 0:
            next(mar(alone, Start(order), noise=noise))  # what a first call costs is nobody's
        paced = (
            run(order, pair.target.dim, mar(alone, Start(order), noise=noise)).seconds
            if number < PACED
            else float("nan")
        )
        done = run(order, pair.target.dim, method(pair, Start(order), noise=noise, **spec["options"]))
        found = {
            "tokens": done.tokens, "order": done.order, "step": done.step, "accepted": done.accepted, "log_ratio": done.log_ratio,
            "distance": done.distance, "steps": done.steps, "tries": done.tries, "gave_up": done.gave_up,
        }  # fmt: skip
        for name, value in found.items():
            columns.setdefault(name, []).append(value.cpu().numpy())
        for part, model in zip(("target", "draft"), pair, strict=True):
            for name, spent in model.counts.items() if isinstance(model, Clocked) else ():
                columns.setdefault(f"{part}_{name}", []).append(np.full(len(images), spent / len(images)))
        columns.setdefault("seconds", []).append(np.full(len(images), done.seconds / len(images)))
        columns.setdefault("alone_seconds", []).append(np.full(len(images), paced / len(images)))
    joined = {k: np.concatenate(v) for k, v in columns.items()}
    said = canonical({**provenance(device, "float32", threads), "spec": spec})
    write_arrays(out, ids=np.arange(spec["images"]), provenance=np.array(said), **joined)
