"""The batch loop: decodes rows of any kind of model with one method, and times plain decoding beside it.

The part of a kind is in `parity.decode.<kind>`, imported by name, so that an edit of one concerns that kind alone.

    PACED                             batches of a job beside which plain decoding is timed
    opened(loaded, spec)              a function of (rows, noise) that gives the (model, start) that decoders take
    networks(model)                   the calls by which a decoder uses networks
    record(model, start, steps)       runs a decoder: its tokens, and what they cost columns(rows, model, start, done)
                                      the columns of a shard
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.command import note, progress
from parity.base.devices import too_large
from parity.base.errors import ParityError
from parity.base.files import canonical
from parity.base.noise import Noise, batch_noise
from parity.decode.queue import Queue
from parity.decode.shard_io import Shard, join
from parity.experiment.options import declaration, needs, plain_method, plain_options
from parity.experiment.options import plain as is_plain

Rows = dict[str, np.ndarray]
UNTIMED = dict.fromkeys(("plain_seconds", "single_seconds", "plain_single_seconds"), float("nan"))
Begun = tuple[Any, Any, Any]  # a model, its start, and the steps that a decoder makes of them


class Clock:
    """The calls that were timed. On a GPU a call's ends are events of its stream, so nothing waits for them."""

    def __init__(self, device: torch.device):
        self.events = device.type == "cuda"
        self.spans: list[tuple[Any, Any]] = []  # the ends of each call
        self.inside = False  # a call may make another

    def stamp(self) -> Any:
        if not self.events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if self.inside:
                return call(*inputs)
            begin, self.inside = self.stamp(), True
            out = call(*inputs)
            self.inside = False
            self.spans.append((begin, self.stamp()))
            return out

        return run

    def seconds(self) -> float:
        """Of all calls so far; on a GPU it must have been waited for."""
        return sum(a.elapsed_time(b) / 1000 if self.events else b - a for a, b in self.spans)


@contextmanager
def clocked(calls: Iterable[tuple[Any, str]], device: torch.device) -> Iterator[Clock]:
    """A clock of the calls (a network, and the method by which it is asked) that are made meanwhile: seconds that
    decoding waits for networks, taken from outside, so no decoder and no network knows of it."""
    clock, watched = Clock(device), list(calls)
    for network, name in watched:
        setattr(network, name, clock.timed(getattr(network, name)))
    try:
        yield clock
    finally:
        for network, name in watched:
            delattr(network, name)  # the class's own again


def leaf(kind: str) -> Any:
    return importlib.import_module(f"parity.decode.{kind}")


def load(kind: str, manifest: Mapping[str, Any], spec: dict[str, Any], device: str = "cpu", fast: bool = False) -> Any:
    """The networks that decode a cell, in its dtype, with the companion that its method needs; passes compiled if
    `fast`."""
    models = importlib.import_module(f"parity.models.{kind}.load")
    dtype = getattr(torch, spec.get("dtype", "float32"))
    return models.load(manifest, device, dtype, needs(kind, spec["method"]), fast)


def some(rows: Rows, which: slice) -> Rows:
    return {k: v[which] for k, v in rows.items()}


def start_decoding(kind: str, loaded: Any, spec: dict[str, Any]) -> Callable[[Rows, Noise], Begun]:
    """A method on the models of a job: rows and their noise to what `record` takes. Rows beyond those of the noise wait
    for a place."""
    decoder = getattr(importlib.import_module(f"parity.decoders.{kind}.{spec['method']}"), spec["method"])
    begin = leaf(kind).opened(loaded, spec)

    def steps(rows: Rows, noise: Noise) -> Begun:
        n = len(noise.keys)
        model, start = begin(some(rows, slice(n)), noise)
        if n < len(rows["ids"]):
            keys = noise_of(rows, loaded, spec).keys
            model.queue = Queue(model, noise, keys, lambda new: begin(some(rows, new), Noise(keys[new]))[0])
        return model, start, decoder(model, start, noise=noise, **spec["options"])

    return steps


def noise_of(rows: Rows, loaded: Any, spec: dict[str, Any]) -> Noise:
    wide = torch.float64 if spec.get("dtype") == "float64" else torch.float32  # laws are float32 or wider
    return batch_noise(spec["seed"], rows["ids"].tolist(), str(loaded.device), wide)


def column(value: Any, n: int) -> np.ndarray:
    """A column of n rows: one value for each row, or one number for all."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.full(n, value)


def seconds_of(kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, noise: Noise) -> float:
    """Wall time of decoding a batch, its networks fresh."""
    return leaf(kind).record(*start_decoding(kind, loaded, spec)(rows, noise)).seconds


def beside(kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, noise: Noise, first: bool) -> dict[str, Any]:
    """Wall times of plain decoding of a batch and, of a job's first, of its first row alone, by the method and plainly.
    What a first call pays for once is nobody's. A cell that is plain decoding is its own measure. Plainly no row is
    done before the others: as many as are decoded at once are timed, for all of the rows."""
    plain = {**spec, "method": plain_method(kind), "options": plain_options(kind)}
    itself, n = is_plain(kind, spec["method"], spec["options"]), len(rows["ids"])
    at_once = len(noise.keys)
    rows = some(rows, slice(at_once))
    times: dict[str, Any] = {}
    if first:
        _, _, steps = start_decoding(kind, loaded, plain)(rows, noise)
        next(steps)
    if not itself:
        times["plain_seconds"] = seconds_of(kind, loaded, plain, rows, noise) * n / at_once
    if first and n > 1:
        one, its = some(rows, slice(1)), noise.take(torch.arange(1, device=noise.keys.device))
        plainly = seconds_of(kind, loaded, plain, one, its)
        own = plainly if itself else seconds_of(kind, loaded, spec, one, its)
        alone = {"single_seconds": own, "plain_single_seconds": plainly}
        times |= {name: np.where(np.arange(n) == 0, seconds, np.nan) for name, seconds in alone.items()}
    return times


def report_progress(steps: Iterator[Any], done: int, whole: int, queue: Queue | None) -> Iterator[Any]:
    """The steps; each says how far the job is."""
    for passes, step in enumerate(steps, 1):
        now = done if queue is None else done + queue.next - len(queue.of)
        note(f"{now} of {whole} done, pass {passes}")
        yield step


def piece(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, paced: bool, done_of: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Columns of a batch, with how many rows of how many are done before it; see `decode`."""
    n, noise = len(rows["ids"]), noise_of(some(rows, slice(at_once)), loaded, spec)
    times = beside(kind, loaded, spec, rows, noise, done_of[0] == 0) if paced else {}
    model, start, steps = start_decoding(kind, loaded, spec)(rows, noise)
    with clocked(leaf(kind).networks(model), noise.keys.device) as clock:
        done = leaf(kind).record(model, start, report_progress(steps, *done_of, getattr(model, "queue", None)))
    if paced:
        times = {"plain_seconds": done.seconds, **times}
        if n == 1:
            times |= {"single_seconds": done.seconds, "plain_single_seconds": times["plain_seconds"]}
    counts = {"batch": n, "at_once": len(noise.keys)}
    given = {"ids": rows["ids"], **UNTIMED, **times, "network_seconds": clock.seconds(), **counts}
    return {k: column(v, n) for k, v in (given | leaf(kind).columns(rows, model, start, done)).items()}


def fitted(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int, refill: bool
) -> Iterator[Any]:
    """The batches one after the other, or one that is refilled; if memory is too little for one, halves of it, from
    there on. A row's noise is keyed by its id, so its tokens are the same. ParityError if it is too little for one
    row."""
    first = number = 0
    while (left := len(rows["ids"]) - first) > 0:
        batch = min(batch, left)
        now = some(rows, slice(first, None if refill else first + batch))
        try:
            yield piece(kind, loaded, spec, now, batch, number < paced, (first, len(rows["ids"])))
        except Exception as error:
            if not too_large(error):
                raise
            what = f"out of memory: batch {batch} on {loaded.device}"
            if batch == 1:
                raise ParityError(f"{what}: one row does not fit; allowed: a device with more") from None
            batch = batch // 2
            print(f"{what}; {batch} from here on, with the same tokens", file=sys.stderr, flush=True)
        else:
            first, number = first + len(now["ids"]), number + 1
            continue
        if torch.cuda.is_available():  # behind the handler, which holds what the failed batch had
            torch.cuda.empty_cache()


def refills(kind: str, method: str) -> bool:
    """Whether a method can begin a row in the midst of others."""
    return declaration(kind, method).REFILLS


def decode(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int = 0, refill: bool = False
) -> Shard:
    """Tokens and records of `rows` under `spec`, `batch` of them at once. refill: where a row is done the next takes
    its place, of a method that `refills`.

    What a job's seconds are worth depends on what else the machine does, so plain decoding is timed beside the first
    `paced` batches, on the same rows. Noise is keyed by a row's id, so that changes nothing of what the method draws.
    """
    refill = refill and refills(kind, spec["method"])
    parts = fitted(kind, loaded, spec, rows, batch, paced, refill)
    whole = 1 if refill else -(-len(rows["ids"]) // batch)
    return Shard(join(list(progress(parts, whole, f"{spec['method']} {canonical(spec['options'])}"))))
