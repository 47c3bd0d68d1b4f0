"""The batch loop: decodes rows of any kind of model with one method, and times it in turn with plain decoding.

The part of a kind is in `parity.decode.<kind>`, imported by name, so that an edit of one concerns that kind alone.

    make_starter(loaded, spec)        a function of (rows, noise) that gives the (model, start) that decoders take
    time_networks(model, clock)       the model with `Timed` networks in place of its own
    parameters(loaded)                parameters of each network of a job that decodes
    record(model, start, steps)       runs a decoder: its tokens, and what they cost
    count_plain_passes(model, start, options)  passes of plain decoding, at most: of the row that needs most
    columns(rows, model, start, done) the columns of a shard
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from parity_decoders.noise import Noise
from torch import Tensor

from parity.base.command import note, progress
from parity.base.devices import is_out_of_memory
from parity.base.errors import ParityError
from parity.base.files import dump_canonical
from parity.base.row_noise import batch_noise
from parity.decode.captured import FIRST_PASSES, capture
from parity.decode.clock import Call, Clock
from parity.decode.shard_io import Shard, join
from parity.experiment.options import declaration, find_plain_method, is_plain_decoding, make_plain_options, needs

Rows = dict[str, np.ndarray]
UNTIMED = dict.fromkeys(
    ("plain_seconds", "single_seconds", "plain_single_seconds", "single_pass_cost", "compiled_speedup", "load"),
    float("nan"),
)
Begun = tuple[Any, Any, Any]  # a model, what its decoder starts from, and the iterator of the decoder's steps
PACED = 3  # number of a job's batches that are timed beside plain decoding of the same rows
ALONE, ALONE_SECONDS = 4, 30.0  # number of rows that are timed alone; none begins after so many seconds
WARM = 2  # number of steps that are run and discarded before anything is timed
REFILL_FRACTION = 8  # at most 1/8 of a batch begins at once, to bound the memory of new rows' temporary caches


class Queue:
    """The rows of a shard, of which a batch holds some: where a row is done, the next begins while the others go on
    (iteration-level scheduling, Yu et al. 2022, Orca, sec. 3; "continuous batching").

    A decoder that can begin a row among others declares REFILLS = True. Its state between passes is in
    `parity_decoders.sequence_buffer` or `window`, which reset a row, or depends on the row's `age`. Noise is keyed by a
    row's id and its own passes, so its tokens are the same in any batch.

    of    [B] index of the row that each place of the batch holds
    next  index of the first row that waits
    """

    def __init__(self, model: Any, noise: Noise, keys: Tensor, make_model: Callable[[slice], Any]):
        """Start with the first rows in the places of a batch of this model and noise. keys [N]: noise keys of all rows.
        make_model(rows) makes a model that has read the prompts of these rows, as for a batch of their own."""
        self.model, self.noise, self.keys, self.make_model = model, noise, keys, make_model
        self.next = len(noise.keys)
        self.of = torch.arange(self.next, device=keys.device)

    def waits(self) -> bool:
        """Return whether a row is still waiting."""
        return self.next < len(self.keys)

    def fill(self, done: Tensor) -> Tensor | None:
        """Put waiting rows into places whose rows are `done`, [B] bool on the CPU: model and noise change in place.
        Returns the places that were filled, [B] bool; None if none was."""
        freed = done.nonzero()[: len(self.keys) - self.next, 0]
        if not len(freed):
            return None
        for chunk in freed.split(max(1, len(done) // REFILL_FRACTION)):
            rows = slice(self.next, self.next + len(chunk))
            index = chunk.to(self.of.device)
            self.next = rows.stop
            self.model.join(torch.zeros_like(done).index_fill_(0, chunk, True), self.make_model(rows))
            self.noise.replace(index, self.keys[rows])
            self.of = self.of.index_copy(0, index, torch.arange(rows.start, rows.stop, device=index.device))
        return torch.zeros_like(done).index_fill_(0, freed, True).to(self.of.device)


def import_kind(kind: str) -> Any:
    """Import the module of this folder for a kind of model."""
    return importlib.import_module(f"parity.decode.{kind}")


def load(
    kind: str,
    manifest: Mapping[str, Any],
    spec: dict[str, Any],
    device: str = "cpu",
    fast: bool = False,
    captured: bool = False,
) -> Any:
    """Load the networks of `manifest` that decode a cell of specification `spec`, in its dtype, with the companion that
    its method needs. fast: passes are compiled; captured: those of image tokens are captured where they can be."""
    models = importlib.import_module(f"parity.models.{kind}.load")
    dtype = getattr(torch, spec.get("dtype", "float32"))
    loaded = models.load(manifest, device, dtype, needs(kind, spec["method"]), fast)
    if kind == "discrete":
        loaded.captured = captured
    return loaded


def compile_passes(kind: str, loaded: Any) -> Any:
    """Make a copy of a job's networks, which are shared, whose passes are compiled."""
    return importlib.import_module(f"parity.models.{kind}.load").compile_passes(loaded)


def slice_rows(rows: Rows, which: slice) -> Rows:
    return {k: v[which] for k, v in rows.items()}


def noise_of(rows: Rows, loaded: Any, spec: dict[str, Any]) -> Noise:
    wide = torch.float64 if spec.get("dtype") == "float64" else torch.float32  # laws are float32 or wider
    return batch_noise(spec["seed"], rows["ids"].tolist(), str(loaded.device), wide)


def start_decoding(
    kind: str, loaded: Any, spec: dict[str, Any], clock: Clock | None = None
) -> Callable[[Rows, Noise], Begun]:
    """Make a function of (rows, noise) that starts the method of `spec` on a job's loaded networks, timed by the clock
    if there is one: it gives what `record` takes. Rows beyond those of the noise, which do not fit in the batch, are
    queued."""
    decoder = getattr(importlib.import_module(f"parity_decoders.{kind}.{spec['method']}"), spec["method"])
    begin_rows = import_kind(kind).make_starter(loaded, spec)

    def start(rows: Rows, noise: Noise) -> Begun:
        """Start decoding the rows; the model gets a `Queue` if there are more rows than noise keys."""
        n = len(noise.keys)
        model, starts = begin_rows(slice_rows(rows, slice(n)), noise)
        if clock is not None:
            model = import_kind(kind).time_networks(model, clock)
        if n < len(rows["ids"]):
            keys = noise_of(rows, loaded, spec).keys
            model.queue = Queue(model, noise, keys, lambda new: begin_rows(slice_rows(rows, new), Noise(keys[new]))[0])
        steps = decoder(model, starts, noise=noise, **spec["options"])
        if getattr(loaded, "captured", False):
            steps = capture(spec["method"], steps, clock)
        return model, starts, steps

    return start


def make_column(value: Any, n: int) -> np.ndarray:
    """Make a column of n rows from a tensor or array of values, or from one number for all rows."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.full(n, value)


@dataclass
class Run:
    """A batch that was decoded: its model and start, what `record` gives, and the calls of networks."""

    model: Any
    start: Any
    decoded: Any
    calls: list[Call]

    def pass_seconds(self, captured: bool) -> float:
        """Compute the mean seconds of a pass: of the target's calls, NaN where these are not timed, or of all that a
        pass does if passes are `captured`, whose calls are not timed."""
        if captured:
            return float(self.decoded.seconds / self.decoded.passes)
        target = [call.seconds for call in self.calls if call.network == "target"]
        return float(np.mean(target)) if target else float("nan")


class Doing(NamedTuple):
    """What a job does, as it notes: how many of its rows are done, and what is timed beside them."""

    n_done: int
    total: int
    beside: str = ""  # "" for the batch that is decoded

    def during(self, beside: str) -> "Doing":
        return self._replace(beside=beside)

    def describe(self, what: str, n_more: int = 0) -> str:
        """Describe it in a line that begins with the rows done, `n_more` of this batch among them, and ends with
        `what`."""
        return ", ".join(filter(None, (f"{self.n_done + n_more} of {self.total} done", self.beside, what)))


def note_passes(steps: Iterator[Any], doing: Doing, queue: Queue | None = None, passes: int = 0) -> Iterator[Any]:
    """Yield the steps unchanged and note at each what the job does and the number of the pass, of `passes` unless they
    are not known (0). Rows that `queue` has replaced are done."""
    of_all = f" of {passes}" if passes else ""
    for number, step in enumerate(steps, 1):
        note(doing.describe(f"pass {number}{of_all}", 0 if queue is None else queue.next - len(queue.of)))
        yield step


def run_decoder(kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, doing: Doing) -> Run:
    """Decode rows, at most `at_once` of them at a time: a further row takes the place of one that is done. Each pass is
    noted, as what `doing` says."""
    noise = noise_of(slice_rows(rows, slice(at_once)), loaded, spec)
    clock = Clock(noise.keys.device)
    model, start, steps = start_decoding(kind, loaded, spec, clock)(rows, noise)
    queue = getattr(model, "queue", None)
    passes = 0
    if queue is None and spec["method"] == find_plain_method(kind):
        passes = import_kind(kind).count_plain_passes(model, start, spec["options"])
    decoded = import_kind(kind).record(model, start, note_passes(steps, doing, queue, passes))
    return Run(model, start, decoded, clock.list_calls())


def warm_up(kind: str, loaded: Any, specs: Iterable[dict[str, Any]], rows: Rows, doing: Doing) -> None:
    """Run and discard the first steps of each specification on all rows and on one, which are the slowest: WARM, or all
    before those that are captured."""
    n_steps = FIRST_PASSES if getattr(loaded, "captured", False) else WARM
    for spec in specs:
        for some_rows in (rows, slice_rows(rows, slice(1))):
            note(doing.describe(f"warming up {spec['method']}"), interval=0)
            steps = start_decoding(kind, loaded, spec)(some_rows, noise_of(some_rows, loaded, spec))[2]
            for _ in zip(range(n_steps), steps, strict=False):
                pass


def time_alone(
    kind: str, loaded: Any, spec: dict[str, Any], plain: dict[str, Any], rows: Rows, n: int, doing: Doing
) -> dict[str, np.ndarray]:
    """Time the first rows, ALONE at most, decoded one by one by the method (spec) and plainly, who is first in turn; of
    plain decoding itself, whose speed is 1, one row. Returns seconds of both and the ratio of their seconds a pass, as
    columns [n]; NaN for other rows."""
    names = ("single_seconds", "plain_single_seconds", "single_pass_cost")
    columns = {name: np.full(n, np.nan) for name in names}
    started = time.monotonic()
    captured = getattr(loaded, "captured", False)
    n_alone = 1 if spec == plain else min(ALONE, len(rows["ids"]))
    for i in range(n_alone):
        if i and time.monotonic() - started > ALONE_SECONDS:
            break
        row = slice_rows(rows, slice(i, i + 1))
        runs = {}  # by whether they are plain
        for which in ([plain] if spec == plain else [plain, spec])[:: -1 if i % 2 else 1]:
            alone = doing.during(f"{which['method']} alone, {i + 1} of {n_alone}")
            runs[which == plain] = run_decoder(kind, loaded, which, row, 1, alone)
        method, plainly = runs.get(False, runs[True]), runs[True]
        cost = method.pass_seconds(captured) / plainly.pass_seconds(captured)
        for name, value in zip(names, (method.decoded.seconds, plainly.decoded.seconds, cost), strict=True):
            columns[name][i] = value
    return columns


def time_compiled(kind: str, loaded: Any, compiled: Any, spec: dict[str, Any], rows: Rows) -> np.ndarray:
    """Time the first rows decoded alone by the networks `loaded` and by the same ones with `compiled` passes, who is
    first in turn. Returns how many times faster the compiled ones are, [n]; NaN for other rows, and if compiling fails.
    """
    n = len(rows["ids"])
    speedups = np.full(n, np.nan)
    doing = Doing(n, n, "compiled passes")
    warm_up(kind, compiled, [spec], slice_rows(rows, slice(1)), doing)
    for i in range(0 if compiled.run.failed else min(ALONE, n)):
        row = slice_rows(rows, slice(i, i + 1))
        networks = [loaded, compiled][:: -1 if i % 2 else 1]
        during = doing.during(f"compiled passes, {i + 1} of {min(ALONE, n)}")
        seconds = {
            which is compiled: run_decoder(kind, which, spec, row, 1, during).decoded.seconds for which in networks
        }
        speedups[i] = seconds[False] / seconds[True]
    return speedups


def decode_batch(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, doing: Doing
) -> dict[str, np.ndarray]:
    """Decode a batch of rows, at_once of them at a time, and return the columns of a shard, NaN for times beside plain
    decoding. doing: how many rows are done before it."""
    n = len(rows["ids"])
    run = run_decoder(kind, loaded, spec, rows, at_once, doing)
    drafting = [call for call in run.calls if call.network != "target"]
    columns: dict[str, Any] = {"ids": rows["ids"], **UNTIMED, "batch": n, "at_once": min(at_once, n)}
    columns |= {"network_seconds": sum(call.seconds for call in run.calls), "draft_calls": len(drafting)}
    columns |= {"draft_tokens": sum(call.tokens for call in drafting)}
    columns |= import_kind(kind).columns(rows, run.model, run.start, run.decoded)
    return {name: make_column(value, n) for name, value in columns.items()}


def time_pair(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, number: int, doing: Doing
) -> dict[str, np.ndarray]:
    """Decode a batch as `decode_batch` does, and plainly beside it, who is first in turn; return its columns with the
    times of both. number: of the batch, from 0; the first also times single rows (see `time_alone`).

    If the cell is itself plain decoding, its own time is the baseline. If rows wait, plain decoding of the first
    at_once is timed and scaled to all. spec["baseline"]: the options with which the method of plain decoding takes its
    place (`experiment.cells.find_baseline`)."""
    n = len(rows["ids"])
    first_rows = slice_rows(rows, slice(at_once))
    plain = {**spec, "method": find_plain_method(kind), "options": spec.get("baseline") or make_plain_options(kind)}
    if is_plain_decoding(kind, spec["method"], spec["options"]):
        plain = spec
    itself = spec == plain
    times: dict[str, Any] = {}
    if number == 0:
        warm_up(kind, loaded, [plain] if itself else [plain, spec], first_rows, doing)
        times = time_alone(kind, loaded, spec, plain, first_rows, n, doing) if n > 1 else {}
    beside = doing.during(f"{plain['method']} beside batch {number + 1}")

    def time_plain() -> float:
        """Time plain decoding of the batch's first rows; return the seconds of as many as the batch has."""
        return run_decoder(kind, loaded, plain, first_rows, at_once, beside).decoded.seconds * n / at_once

    plain_seconds: Any = None if itself or number % 2 else time_plain()
    columns = decode_batch(kind, loaded, spec, rows, at_once, doing)  # which frees its cache for plain decoding
    if plain_seconds is None:
        plain_seconds = columns["seconds"] if itself else time_plain()
    times |= {"plain_seconds": plain_seconds, "load": os.getloadavg()[0]}
    if n == 1:
        times |= {"single_seconds": columns["seconds"], "plain_single_seconds": plain_seconds}
    return columns | {name: make_column(value, n) for name, value in times.items()}


def batches(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int, refill: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the columns of batches of `batch` rows, one after another, or, if `refill`, of all rows as one batch that
    is refilled. If memory is too little, batches are half as large from there on: a row's tokens stay the same, because
    its noise is keyed by its id. Raises ParityError if it is too little for one row."""
    first = number = 0
    while (remaining := len(rows["ids"]) - first) > 0:
        batch = min(batch, remaining)
        batch_rows = slice_rows(rows, slice(first, None if refill else first + batch))
        doing = Doing(first, len(rows["ids"]))
        try:
            if number < paced:
                yield time_pair(kind, loaded, spec, batch_rows, batch, number, doing)
            else:
                yield decode_batch(kind, loaded, spec, batch_rows, batch, doing)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            problem = f"out of memory: batch {batch} on {loaded.device}"
            if batch == 1:
                raise ParityError(f"{problem}: one row does not fit; allowed: a device with more") from None
            batch = batch // 2
            print(f"{problem}; {batch} from here on, with the same tokens", file=sys.stderr, flush=True)
        else:
            first += len(batch_rows["ids"])
            number += 1
            continue
        if torch.cuda.is_available():  # not inside the handler, where the error still holds the failed batch's memory
            torch.cuda.empty_cache()


def decode(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, paced: int = 0, refill: bool = False
) -> Shard:
    """Decode all rows by the method of `spec`, `batch` of them at once; return the shard, without provenance. refill: a
    waiting row takes the place of one that is done, if the method declares REFILLS.

    Seconds depend on what else the machine does, so the first `paced` batches are timed beside plain decoding of the
    same rows, and a few rows are decoded alone, by both. This changes no token, because noise is keyed by a row's id.
    """
    refill = refill and declaration(kind, spec["method"]).REFILLS
    decoded = batches(kind, loaded, spec, rows, batch, paced, refill)
    total = 1 if refill else -(-len(rows["ids"]) // batch)
    return Shard(join(list(progress(decoded, total, f"{spec['method']} {dump_canonical(spec['options'])}"))))
