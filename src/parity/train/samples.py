"""Rows that a model draws itself, for its speculator to learn from: stored as they are drawn, so a kill loses none."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.files import digest, read_arrays, write_arrays
from parity.decode import loop
from parity.experiment import tuned
from parity.experiment.options import list_bounds, make_plain_options, needs, options
from parity.experiment.weights import list_option_sizes
from parity.generate import Generator

SEED = 2**31 - 1  # with this seed and ids of their own, rows share no noise with an experiment


def complete_options(generator: Generator, method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Complete a method's options, those that count positions or tokens at most as many as the model has."""
    chosen = options("discrete", method, given, method)
    bounds = list_bounds("discrete", method, list_option_sizes(generator.case.spec))
    return {name: min(value, bounds[name]) if name in bounds else value for name, value in chosen.items()}


def choose_method(generator: Generator) -> tuple[str, dict[str, Any]]:
    """Choose how rows are drawn: what `parity tune` found to be fastest if it needs no speculator, else `sjd_coupled`.
    Returns the method and its options."""
    entry, _ = tuned.find(generator.case)
    if entry and not needs("discrete", entry["method"]):
        return entry["method"], entry["options"]
    method = tuned.UNTUNED["discrete"]
    return method, complete_options(generator, method, {})


class Samples:
    """Rows of some prompts in turn, each with noise of its own."""

    def __init__(self, generator: Generator, folder: Path, prompts: Sequence[str], at_once: int, plain: bool = False):
        """Choose the method, or plain decoding. Rows are drawn `at_once` and stored beside `folder`, in one whose name
        says the model, the prompts and the sampling."""
        self.generator = generator
        self.prompts = prompts
        self.at_once = at_once
        self.method, chosen = ("ar", make_plain_options("discrete")) if plain else choose_method(generator)
        self.spec = {**generator.case.setting, "seed": SEED, "method": self.method, "options": chosen}
        self.name = folder.name
        self.folder = folder.with_name(f"{folder.name}-{digest([self.spec, list(prompts), at_once])}")
        self.batches: list[dict[str, np.ndarray]] = []

    @cached_property
    def encode(self) -> Any:
        """The model's text encoder, loaded when the first row is drawn."""
        from parity.models.discrete.load import load_encoder

        return load_encoder(self.generator.manifest, self.generator.device)

    def take(self, count: int) -> None:
        """Draw rows, or read those that are stored, until there are `count`."""
        while len(self.batches) * self.at_once < count:
            self.batches.append(self.draw(len(self.batches)))

    def draw(self, number: int) -> dict[str, np.ndarray]:
        """Draw batch `number`, or read it: its ids, encoded captions, tokens [at_once, L] and passes `nfe`."""
        ids = range(number * self.at_once, (number + 1) * self.at_once)
        captions = [self.prompts[i % len(self.prompts)] for i in ids]
        rows = {"ids": np.array([f"{self.name}/{i}" for i in ids]), "captions": np.array(captions)}
        rows |= {name: column.cpu().numpy() for name, column in self.encode(captions).items()}
        file = self.folder / f"{number:05d}.npz"
        if not file.exists():
            loaded = self.generator.load_networks(self.method)
            done = (ids.start, ids.stop)
            columns = loop.decode_batch("discrete", loaded, self.spec, rows, self.at_once, done, "rows for training")
            write_arrays(file, tokens=columns["tokens"], nfe=columns["nfe"])
        return rows | read_arrays(file)

    def select(self, rows: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        """Select drawn rows by number: what the model is conditioned on, and tokens int64 [n, L], on its device."""
        found = [(self.batches[i // self.at_once], i % self.at_once) for i in rows]
        device = self.generator.device
        names = self.batches[0].keys() - {"ids", "captions", "tokens", "nfe"}
        inputs = {n: torch.from_numpy(np.stack([batch[n][i] for batch, i in found])).to(device) for n in names}
        tokens = torch.from_numpy(np.stack([batch["tokens"][i] for batch, i in found]))
        return inputs, tokens.long().to(device)
