"""Planted faults: decoders wrong in one place, which the tests must reject, and their correct originals.

A suite that lets one of them pass proves nothing by passing your decoder. A module of this folder says of its kind

    trials(n, seeds, draws=1999, threads=1) -> Trials      its decoders, each on each of its targets
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from parity_certify.result_rows import Row

from parity.base.noise import Noise
from parity.equality.targets import Decoder


class Trial(NamedTuple):
    """A decoder on a target."""

    method: str
    fault: str  # "none" for a correct one
    sample: Callable[[int], list[Row]]  # rows of the sample of a seed
    enough: bool = True  # whether the sample is large enough for the fault to show
    outcome: tuple[str, ...] = ("all four",)  # tests whose rows say `as_required`


def hit(rows: Iterable[Row]) -> bool:
    """Whether one of the rows that decide rejects."""
    return any(r["decides"] and r["verdict"] == "rejected" for r in rows)


def planted(trials: Iterable[Trial], seeds: Sequence[int] = (0, 1)) -> list[Row]:
    """Rows of every trial on every seed; their key is the fault.

    as_required  whether a trial goes as it must: a fault is found on every seed (None if its sample is too small); a
                 correct decoder is not rejected on every seed (a rejection by chance, one in twenty, does not repeat)
    """
    result = []
    for trial in trials:
        samples = [trial.sample(seed) for seed in seeds]
        hits = all(hit(rows) for rows in samples)
        required = not hits if trial.fault == "none" else hits if trial.enough else None
        for repeat, (seed, rows) in enumerate(zip(seeds, samples, strict=True)):
            about = {"method": trial.method, "key": trial.fault, "seed": seed, "repeat": repeat}
            result += [r | about | ({"as_required": required} if r["test"] in trial.outcome else {}) for r in rows]
    return result


def altered(module: str, **names: Any) -> ModuleType:
    """A second copy of a decoder's module with something else under some of the names it reads.

    AttributeError for a name that the module does not have: the fault would be planted nowhere.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None, module
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, value in names.items():
        getattr(copy, name)
        setattr(copy, name, value)
    return copy


def with_model(decoder: Decoder, make: Callable[[Any], Any]) -> Decoder:
    """The decoder on another model."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return decoder(make(model), start, noise=noise, **options)

    return faulty


def with_noise(decoder: Decoder, make: Callable[[Noise], Noise]) -> Decoder:
    """The decoder with other noise."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return decoder(model, start, noise=make(noise), **options)

    return faulty


def in_small(decoder: Decoder, wrong: Decoder, most: int) -> Decoder:
    """Wrong in batches of `most` rows or fewer."""

    def faulty(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
        return (wrong if len(noise.keys) <= most else decoder)(model, start, noise=noise, **options)

    return faulty
