"""The batch loop: decodes rows of any kind of model with one method, and times plain decoding beside it.

The part of a kind is in `parity.decode.<kind>`, imported by name, so that an edit of one concerns that kind alone.

    PACED                             batches of a job beside which plain decoding is timed
    opened(loaded, spec)              a function of (rows, noise) that gives the (model, start) that decoders take
    networks(model)                   the calls by which a decoder uses networks
    record(model, start, steps)       runs a decoder: its tokens, and what they cost
    columns(rows, model, start, done) the columns of a shard
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
from parity.decode.shard_io import Shard, join
from parity.experiment.options import declaration, needs, plain_method, plain_options
from parity.experiment.options import plain as is_plain

Rows = dict[str, np.ndarray]
UNTIMED = dict.fromkeys(("plain_seconds", "single_seconds", "plain_single_seconds"), float("nan"))
Begun = tuple[Any, Any, Any]  # a model, its start, and the steps that a decoder makes of them
ALONE, ALONE_SECONDS = 3, 10.0  # rows of a job that are timed alone; no further one begins after so many seconds
PART = 8  # of a batch: as many of its rows, at most, begin at once, as each has a cache of its own until it has joined


class Queue:
    """The rows of a shard, of which a batch holds some: where a row is done, the next begins while the others go on
    (iteration-level scheduling, Yu et al. 2022, Orca, sec. 3; "continuous batching").

    A decoder that can begin a row among others declares REFILLS = True. Its state between passes is in
    `parity.decoders.sequence_buffer` or `window`, which reset a row, or depends on the row's `age`. Noise is keyed by a
    row's id and its own passes, so its tokens are the same in any batch.

    of    [B] the row in each place of the batch
    next  the first row that waits
    """

    def __init__(self, model: Any, noise: Noise, keys: Tensor, begin: Callable[[slice], Any]):
        """model, noise: of the batch, whose places hold the first rows; keys [N] of all rows' noise; begin(rows): a
        model that has read the prompts of these, as for a batch of their own."""
        self.model, self.noise, self.keys, self.begin = model, noise, keys, begin
        self.next = len(noise.keys)
        self.of = torch.arange(self.next, device=keys.device)

    def waits(self) -> bool:
        """Whether any row does."""
        return self.next < len(self.keys)

    def fill(self, done: Tensor) -> Tensor | None:
        """Begin waiting rows in places that are `done`, [B] bool on the CPU. Which places, [B] bool; None for none."""
        places = done.nonzero()[: len(self.keys) - self.next, 0]
        if not len(places):
            return None
        for part in places.split(max(1, len(done) // PART)):
            rows, to = slice(self.next, self.next + len(part)), part.to(self.of.device)
            self.next = rows.stop
            self.model.join(torch.zeros_like(done).index_fill_(0, part, True), self.begin(rows))
            self.noise.replace(to, self.keys[rows])
            self.of = self.of.index_copy(0, to, torch.arange(rows.start, rows.stop, device=to.device))
        return torch.zeros_like(done).index_fill_(0, places, True).to(self.of.device)


@contextmanager
def clocked(calls: Iterable[tuple[Any, str]], device: torch.device) -> Iterator[Callable[[], list[float]]]:
    """Time the calls (a network, and the name of its method) that are made meanwhile, unknown to decoder and network.
    Yields a function that gives the seconds of each call so far. On a GPU the ends of a call are events of its stream,
    which nothing waits for."""
    spans: list[tuple[Any, Any]] = []
    cuda, inside, watched = device.type == "cuda", False, list(calls)

    def stamp() -> Any:
        if not cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            nonlocal inside
            if inside:  # a call that another one makes
                return call(*inputs)
            begin, inside = stamp(), True
            out = call(*inputs)
            inside = False
            spans.append((begin, stamp()))
            return out

        return run

    for network, name in watched:
        setattr(network, name, timed(getattr(network, name)))
    try:
        yield lambda: [a.elapsed_time(b) / 1000 if cuda else b - a for a, b in spans]
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


def noise_of(rows: Rows, loaded: Any, spec: dict[str, Any]) -> Noise:
    wide = torch.float64 if spec.get("dtype") == "float64" else torch.float32  # laws are float32 or wider
    return batch_noise(spec["seed"], rows["ids"].tolist(), str(loaded.device), wide)


def start_decoding(kind: str, loaded: Any, spec: dict[str, Any]) -> Callable[[Rows, Noise], Begun]:
    """A method on the models of a job: a function of rows and their noise that gives what `record` takes. Rows beyond
    those of the noise wait for a place."""
    decoder = getattr(importlib.import_module(f"parity.decoders.{kind}.{spec['method']}"), spec["method"])
    begin = leaf(kind).opened(loaded, spec)

    def start(rows: Rows, noise: Noise) -> Begun:
        n = len(noise.keys)
        model, begun = begin(some(rows, slice(n)), noise)
        if n < len(rows["ids"]):
            keys = noise_of(rows, loaded, spec).keys
            model.queue = Queue(model, noise, keys, lambda new: begin(some(rows, new), Noise(keys[new]))[0])
        return model, begun, decoder(model, begun, noise=noise, **spec["options"])

    return start


def as_column(value: Any, n: int) -> np.ndarray:
    """A column of n rows, from a value for each or one number for all."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.full(n, value)


def time_plain(kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, noise: Noise, first: bool) -> dict[str, Any]:
    """Wall times of plain decoding of a batch and, of a job's first, of some rows alone, by the method and plainly; the
    very first step of a job is not timed. A cell that is plain decoding is its own measure. Where rows wait, as
    many as are decoded at once are timed, for all of the rows."""
    plain = {**spec, "method": plain_method(kind), "options": plain_options(kind)}
    itself, n, at_once = is_plain(kind, spec["method"], spec["options"]), len(rows["ids"]), len(noise.keys)
    rows = some(rows, slice(at_once))

    def seconds(spec: dict[str, Any], rows: Rows, noise: Noise) -> float:
        return leaf(kind).record(*start_decoding(kind, loaded, spec)(rows, noise)).seconds

    times: dict[str, Any] = {}
    if first:
        next(start_decoding(kind, loaded, plain)(rows, noise)[2])
    if not itself:
        times["plain_seconds"] = seconds(plain, rows, noise) * n / at_once
    if first and n > 1:
        times |= {name: np.full(n, np.nan) for name in ("single_seconds", "plain_single_seconds")}
        begun = time.monotonic()
        for i in range(min(ALONE, at_once)):
            if i and time.monotonic() - begun > ALONE_SECONDS:
                break
            alone = some(rows, slice(i, i + 1)), noise.take(torch.arange(i, i + 1, device=noise.keys.device))
            times["plain_single_seconds"][i] = plainly = seconds(plain, *alone)
            times["single_seconds"][i] = plainly if itself else seconds(spec, *alone)
    return times


def report_progress(steps: Iterator[Any], done: int, whole: int, queue: Queue | None) -> Iterator[Any]:
    """The steps; each says how far the job is."""
    for passes, step in enumerate(steps, 1):
        now = done if queue is None else done + queue.next - len(queue.of)
        note(f"{now} of {whole} done, pass {passes}")
        yield step


def decode_batch(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, paced: bool, done_of: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Columns of a batch; done_of: how many rows of how many are done before it. See `decode`."""
    n, noise = len(rows["ids"]), noise_of(some(rows, slice(at_once)), loaded, spec)
    times = time_plain(kind, loaded, spec, rows, noise, done_of[0] == 0) if paced else {}
    model, start, steps = start_decoding(kind, loaded, spec)(rows, noise)
    with clocked(leaf(kind).networks(model), noise.keys.device) as network_seconds:
        done = leaf(kind).record(model, start, report_progress(steps, *done_of, getattr(model, "queue", None)))
    if paced:
        times = {"plain_seconds": done.seconds, **times}
        if n == 1:
            times |= {"single_seconds": done.seconds, "plain_single_seconds": times["plain_seconds"]}
    counts = {"batch": n, "at_once": len(noise.keys), "network_seconds": sum(network_seconds())}
    columns = {"ids": rows["ids"], **UNTIMED, **times, **counts} | leaf(kind).columns(rows, model, start, done)
    return {name: as_column(value, n) for name, value in columns.items()}


def batches(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int, refill: bool
) -> Iterator[dict[str, np.ndarray]]:
    """The batches one after the other, or one that is refilled. If memory is too little for one, halves of it from
    there on: a row's noise is keyed by its id, so its tokens are the same. ParityError if it is too little for a
    row."""
    first = number = 0
    while (left := len(rows["ids"]) - first) > 0:
        batch = min(batch, left)
        now = some(rows, slice(first, None if refill else first + batch))
        try:
            yield decode_batch(kind, loaded, spec, now, batch, number < paced, (first, len(rows["ids"])))
        except Exception as error:
            if not too_large(error):
                raise
            problem = f"out of memory: batch {batch} on {loaded.device}"
            if batch == 1:
                raise ParityError(f"{problem}: one row does not fit; allowed: a device with more") from None
            batch = batch // 2
            print(f"{problem}; {batch} from here on, with the same tokens", file=sys.stderr, flush=True)
        else:
            first, number = first + len(now["ids"]), number + 1
            continue
        if torch.cuda.is_available():  # behind the handler, which holds what the failed batch had
            torch.cuda.empty_cache()


def decode(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int = 0, refill: bool = False
) -> Shard:
    """Tokens and records of `rows` under `spec`, `batch` of them at once. refill: where a row is done the next takes
    its place, of a method that declares REFILLS.

    Seconds depend on what else the machine does, so plain decoding is timed beside the first `paced` batches, on the
    same rows. This changes no token, because noise is keyed by a row's id.
    """
    refill = refill and declaration(kind, spec["method"]).REFILLS
    parts = batches(kind, loaded, spec, rows, batch, paced, refill)
    total = 1 if refill else -(-len(rows["ids"]) // batch)
    return Shard(join(list(progress(parts, total, f"{spec['method']} {canonical(spec['options'])}"))))
