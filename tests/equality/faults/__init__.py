"""Injected faults: decoders wrong in one place, which the tests must reject, and their correct originals.

A suite that lets one of them pass proves nothing by passing your decoder. A module of this folder has, for its kind,

    make_trials(n, seeds, draws, threads)  decoders on models whose outcomes are all listed; n draws each
    make_long_trials(n)                    faults that short sequences do not show, about n tokens on a long model each
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_decoders.noise import Noise
from torch import Tensor

from parity.equality.targets import Decoder
from parity.experiment.options import measure_reach

FAR = 128  # position from which late faults change the decoder
NO_FAULT = "none"  # what a trial of a correct decoder has in place of its fault
ENOUGH = 30_000  # number of sampled tokens in which the tests must find each fault of long sequences
Correct = dict[str, tuple[Decoder, dict[str, Any]]]  # correct decoders and their options, by name
Faulty = dict[str, tuple[Decoder, str, str]]  # by name: a decoder, its fault, and the model on which that is looked for


class Trial(NamedTuple):
    """A decoder on a target."""

    method: str
    fault: str  # description of the injected fault; NO_FAULT for a correct decoder
    sample: Callable[[int], list[Row]]  # draws a sample with the given seed, tests it and returns the result rows
    must_show: bool = True  # whether the sample is large enough that the tests must find the fault

    def is_faulty(self) -> bool:
        return self.fault != NO_FAULT


def is_rejected(rows: Iterable[Row]) -> bool:
    """Tell whether the verdict of any row that decides is "rejected"."""
    return any(r["decides"] and r["verdict"] == "rejected" for r in rows)


class Outcome(NamedTuple):
    """What the tests say of a trial."""

    trial: Trial
    samples: list[list[Row]]  # result rows of each seed's sample
    hits: int  # number of samples that were rejected
    # Whether the outcome is what it must be: a fault is found on every seed (None if its sample is too small for that),
    # and a correct decoder is not rejected on every seed (a rejection by chance, one in twenty, does not repeat).
    as_required: bool | None


def try_out(trial: Trial, seeds: Sequence[int] = (0, 1)) -> Outcome:
    """Run a trial with each seed, and judge whether its rejections are as they must be (see `Outcome.as_required`)."""
    samples = [trial.sample(seed) for seed in seeds]
    hits = sum(map(is_rejected, samples))
    always = hits == len(samples)
    if not trial.is_faulty():
        return Outcome(trial, samples, hits, not always)
    return Outcome(trial, samples, hits, always if trial.must_show or always else None)


def make_trials_on_long(
    kind: str, correct: Correct, faulty: Faulty, targets: Callable[..., Sequence[Any]], n: int
) -> Iterator[Trial]:
    """Yield trials of about n tokens on the long targets of a kind, which targets(lengths, n) makes: a correct decoder
    on all of them, a faulty one on those whose name begins with its model's. All tests of a trial are one family for
    Holm's correction; impossible tokens are rejected, but raise no error."""

    def sample(decoder: Decoder, options: dict[str, Any], models: Sequence[Any], seed: int) -> list[Row]:
        """Draw a sample of each model with the decoder and return the rows of all tests, corrected as one family."""
        rows: list[Row] = []
        for model in models:
            drawn = model.draw(decoder, 0, seed, options)._replace(predictable=True)
            rows += model.make_rows(drawn, "long", seed, 0)
        return R.adjust_family(rows)

    decoders = {name: (decoder, NO_FAULT, "") for name, (decoder, _) in correct.items()} | faulty
    for method, (decoder, fault, model) in decoders.items():
        name = method.partition(":")[0]
        _, options = correct[name]
        models = [t for t in targets(measure_reach(kind, name, options), n) if t.name.startswith(model)]
        yield Trial(method, fault, partial(sample, decoder, options, models), n >= ENOUGH)


def patch_module(module: str, **names: Any) -> ModuleType:
    """Load a second copy of a decoder's module, replace the given names in it, and return it; the module itself stays.

    Raises AttributeError for a name that the module does not have: the fault would be injected nowhere.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None, module
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, value in names.items():
        getattr(copy, name)
        setattr(copy, name, value)
    return copy


class Overridden:
    """A model with one method replaced by function(model, *arguments)."""

    def __init__(self, model: Any, method: str, function: Callable[..., Any]):
        self.model, self.method, self.function = model, method, function

    def __getattr__(self, name: str) -> Any:
        return partial(self.function, self.model) if name == self.method else getattr(self.model, name)

    def take(self, rows: Tensor) -> "Overridden":
        return Overridden(self.model.take(rows), self.method, self.function)


def change_model(decoder: Decoder, change: Callable[[Any], Any]) -> Decoder:
    """Make a decoder that runs `decoder` on change(model) in place of the model."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return decoder(change(model), start, noise=noise, **options)

    return faulty


def change_noise(decoder: Decoder, change: Callable[[Noise], Noise]) -> Decoder:
    """Make a decoder that runs `decoder` with change(noise) in place of the noise."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return decoder(model, start, noise=change(noise), **options)

    return faulty


def swap_in_small(decoder: Decoder, wrong: Decoder, largest: int) -> Decoder:
    """Make a decoder that runs `wrong` on batches of up to `largest` rows, and `decoder` on larger ones."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return (wrong if len(noise.keys) <= largest else decoder)(model, start, noise=noise, **options)

    return faulty


class Renumbered(Noise):
    """Noise that reads its numbers at index(index) instead: those of the use `only`, or all if it is empty."""

    def __init__(self, noise: Noise, index: Callable[[Tensor], Tensor], only: str = ""):
        super().__init__(noise.keys, noise.dtype)
        self.noise, self.index, self.only = noise, index, only

    def _draw(self, use: str, index: Tensor, *how: Any) -> Tensor:
        return self.noise._draw(use, self.index(index) if self.only in ("", use) else index, *how)


def renumber(decoder: Decoder, index: Callable[[Tensor], Tensor], only: str = "") -> Decoder:
    """Make a decoder that reads its random numbers at index(index): those of the use `only`, or all if it is empty."""
    return change_noise(decoder, lambda noise: Renumbered(noise, index, only))


def share_noise(noise: Noise) -> Noise:
    """Make noise in which every second row of a batch has the random numbers of the row before."""
    return Noise(noise.keys[torch.arange(len(noise.keys)) // 2 * 2], noise.dtype)


def share_noise_in_runs(noise: Noise) -> Noise:
    """Make noise that pairs of rows share, as with `share_noise`, in batches of 9 to 64 rows, the sizes of a run's
    batches; return the noise itself in others."""
    return share_noise(noise) if 9 <= len(noise.keys) <= 64 else noise
