"""The batch loop: decodes rows of any kind of model with one method.

The part of a kind is in `parity.decode.<kind>`, imported by name, so that an edit of one concerns that kind alone.

    make_starter(loaded, spec)        a function of (rows, noise, and a queue, if rows wait) that gives (model, start)
    time_networks(model, clock)       the model with `Timed` networks in place of its own
    parameters(loaded)                parameters of each network of a job that decodes
    record(model, start, steps)       runs a decoder: its tokens, and what they cost
    count_plain_passes(model, start, options)  passes of plain decoding, at most: of the row that needs most
    columns(rows, model, start, done) the columns of a shard
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from parity_decoders.captured import capture
from parity_decoders.compiling import compile_passes
from parity_decoders.noise import Noise
from torch import Tensor

from parity.base.command import note, progress
from parity.base.devices import is_out_of_memory
from parity.base.errors import ParityError
from parity.base.files import dump_canonical
from parity.base.row_noise import batch_noise
from parity.decode.clock import Clock, Timed
from parity.decode.shard_io import Shard, join
from parity.experiment.decoders import import_decoder
from parity.experiment.options import declaration, find_plain_method, needs

Rows = dict[str, np.ndarray]
T = TypeVar("T")
Begun = tuple[Any, Any, Any]  # a model, what its decoder starts from, and the iterator of the decoder's steps
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

    def __init__(self, noise: Noise, keys: Tensor, make_model: Callable[[slice], Any]):
        """Start with the first rows in the places of a batch of this noise. keys [N]: noise keys of all rows.
        make_model(rows) makes a model that has read the prompts of these rows, as for a batch of their own."""
        self.noise, self.keys, self.make_model = noise, keys, make_model
        self.next = len(noise.keys)
        self.of = torch.arange(self.next, device=keys.device)

    def waits(self) -> bool:
        return self.next < len(self.keys)

    def fill(self, model: Any, done: Tensor) -> Tensor | None:
        """Put waiting rows into places of a batch whose rows are `done`, [B] bool on the CPU: its model and noise
        change in place. Returns the places that were filled, [B] bool; None if none was."""
        freed = done.nonzero()[: len(self.keys) - self.next, 0]
        if not len(freed):
            return None
        for chunk in freed.split(max(1, len(done) // REFILL_FRACTION)):
            rows = slice(self.next, self.next + len(chunk))
            index = chunk.to(self.of.device)
            self.next = rows.stop
            model.join(torch.zeros_like(done).index_fill_(0, chunk, True), self.make_model(rows))
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
    """Load the networks of `manifest` that decode a cell of specification `spec`, in its dtype, with the speculator
    that its method needs. fast: passes are compiled; captured: those of image tokens are captured where they can be."""
    models = importlib.import_module(f"parity.models.{kind}.load")
    dtype = getattr(torch, spec.get("dtype", "float32"))
    loaded = models.load(manifest, device, dtype, needs(kind, spec["method"]), fast)
    return replace(loaded, captured=captured) if kind == "discrete" else loaded


def slice_rows(rows: Rows, which: slice) -> Rows:
    return {k: v[which] for k, v in rows.items()}


def noise_of(rows: Rows, loaded: Any, spec: dict[str, Any]) -> Noise:
    wide = torch.float64 if spec.get("dtype") == "float64" else torch.float32  # distributions are float32 or wider
    return batch_noise(spec["seed"], rows["ids"].tolist(), str(loaded.device), wide)


def start_decoding(kind: str, loaded: Any, spec: dict[str, Any], clock: Clock | None = None) -> Callable[..., Begun]:
    """Make a function of (rows, noise, queue) that starts the method of `spec` on a job's loaded networks, timed by the
    clock if there is one: it gives what `record` takes. Without a queue of their own, rows beyond those of the noise,
    which do not fit in the batch, are queued."""
    wrap = None if clock is None else partial(Timed, role="draft", clock=clock, calls=("propose",))
    decoder = import_decoder(kind, spec["method"], spec, wrap)
    begin_rows = import_kind(kind).make_starter(loaded, spec)

    def start(rows: Rows, noise: Noise, queue: Any = None) -> Begun:
        n = len(noise.keys)
        if queue is None and n < len(rows["ids"]):
            keys = noise_of(rows, loaded, spec).keys
            queue = Queue(noise, keys, lambda new: begin_rows(slice_rows(rows, new), Noise(keys[new]))[0])
        waiting = () if queue is None else (queue,)
        model, starts = begin_rows(slice_rows(rows, slice(n)), noise, *waiting)
        if clock is not None:
            model = import_kind(kind).time_networks(model, clock)
        steps = decoder(model, starts, noise=noise, **spec["options"])
        compiles, captures = (getattr(loaded, name, False) for name in ("compiles_whole", "captured"))
        if compiles:
            steps = compile_passes(steps)
        if captures:
            steps = capture(spec["method"], steps)
        if clock is not None and (compiles or captures):
            steps = clock.count_repeated(steps)
        return model, starts, steps

    return start


def make_column(value: Any, n: int) -> np.ndarray:
    """Make a column of n rows from a tensor or array of values, or from one number for all rows."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.full(n, value)


def note_passes(
    steps: Iterator[Any], done: tuple[int, int], queue: Queue | None = None, passes: int = 0, of: str = ""
) -> Iterator[Any]:
    """Yield the steps unchanged and note at each how many of the job's rows are done, and the number of the pass.

    done    rows that were done before this batch, and the rows of the job
    queue   of this batch, if it has one: rows that it has replaced are done, too
    passes  of this batch, as far as they are known; else 0
    of      what the rows are, if it is to be said
    """
    of_all, name = f" of {passes}" if passes else "", f" {of}" if of else ""
    before, total = done
    for number, step in enumerate(steps, 1):
        n_done = before + (0 if queue is None else queue.next - len(queue.of))
        note(f"{n_done} of {total}{name} done, pass {number}{of_all}")
        yield step


def decode_batch(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, done: tuple[int, int], of: str = ""
) -> dict[str, np.ndarray]:
    """Decode a batch of rows, at_once of them at a time: a further row takes the place of one that is done. Returns the
    columns of a shard. done, of: as of `note_passes`."""
    n = len(rows["ids"])
    noise = noise_of(slice_rows(rows, slice(at_once)), loaded, spec)
    clock = Clock(noise.keys.device)
    model, start, steps = start_decoding(kind, loaded, spec, clock)(rows, noise)
    queue = getattr(model, "queue", None)
    passes = 0
    if queue is None and spec["method"] == find_plain_method(kind):
        passes = import_kind(kind).count_plain_passes(model, start, spec["options"])
    decoded = import_kind(kind).record(model, start, note_passes(steps, done, queue, passes, of))
    calls = clock.list_calls()
    drafting = [call for call in calls if call.network != "target"]
    columns: dict[str, Any] = {"ids": rows["ids"], "batch": n, "at_once": min(at_once, n)}
    columns |= {"network_seconds": sum(call.seconds for call in calls), "draft_calls": len(drafting)}
    columns |= {"draft_tokens": sum(call.tokens for call in drafting)}
    columns |= import_kind(kind).columns(rows, model, start, decoded)
    return {name: make_column(value, n) for name, value in columns.items()}


def run_batches(
    rows: np.ndarray, batch: int, refill: bool, device: Any, run: Callable[[np.ndarray, int], Iterator[tuple[Any, T]]]
) -> Iterator[tuple[Any, T]]:
    """Yield what `run` yields of batches of `batch` rows, one after another, or, if `refill`, of all rows as one batch
    that is refilled. If memory is too little, batches are half as large from there on: a row's tokens stay the same,
    because its noise is keyed by its id. Raises ParityError if it is too little for one row.

    rows  [N] indices of rows
    run   decodes a batch, rows and how many of them at once, and yields (rows that ended, what was decoded of them)
    """
    while len(rows):
        batch = tried = min(batch, len(rows))
        begun, ended = rows if refill else rows[:batch], set()
        try:
            for some, decoded in run(begun, batch):
                yield some, decoded
                ended.update(np.asarray(some).tolist())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            problem = f"out of memory: batch {batch} on {device}"
            if batch == 1:
                raise ParityError(f"{problem}: one row does not fit; allowed: a device with more") from None
            batch = batch // 2
            print(f"{problem}; {batch} from here on, with the same tokens", file=sys.stderr, flush=True)
        rows = rows[~np.isin(rows, list(ended))]
        if batch < tried and torch.cuda.is_available():  # not in the handler, where the error holds the memory
            torch.cuda.empty_cache()


def stream_batch(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, at_once: int, done: tuple[int, int]
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Decode a batch of rows, at_once of them at a time, and yield rows when they have ended: see `stream`. A batch
    that is not refilled ends as a whole. done: as of `note_passes`."""
    module = import_kind(kind)
    noise = noise_of(slice_rows(rows, slice(at_once)), loaded, spec)
    resumed = time.perf_counter()
    model, start, steps = start_decoding(kind, loaded, spec)(rows, noise)
    queue = getattr(model, "queue", None)
    steps = note_passes(steps, done, queue)

    def finish(some: np.ndarray, columns: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        columns["passes"] = columns["depth" if kind == "continuous" else "nfe"]
        columns["seconds"] = (time.perf_counter() - resumed) / len(some)
        columns |= {"forced": model.forced} if kind == "discrete" else {}
        return some, columns

    if queue is None:
        yield finish(np.arange(at_once), module.columns(rows, model, start, module.record(model, start, steps)))
        return
    recorder = module.Recorder(model, start)
    for step in steps:
        recorder.write(step)
        if some := recorder.take_ended():
            yield finish(np.array(some), recorder.read_rows(some))
            resumed = time.perf_counter()  # what the caller did with these rows is not decoding
    left = [*recorder.seen]
    decoded = recorder.finish()
    yield finish(np.array(left), {name: getattr(decoded, name)[left] for name in ("tokens", "step", "nfe")})


def stream(
    kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, refill: bool = False
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Decode all rows by the method of `spec`, `batch` of them at once, with the tokens of `decode`, and yield rows as
    soon as they have ended: their indices and their columns.

    tokens, step, and of vectors and texts order, as shards have them
    passes   of the target that a row took part in; of vectors all calls one after another
    seconds  a row's share of the wall time of decoding: that since other rows ended, divided by those that end now
    forced   [L] of image tokens: the token that the grammar forces at a position, or -1

    refill: a waiting row takes the place of one that is done, if the method declares REFILLS."""
    refill = refill and declaration(kind, spec["method"]).REFILLS
    total = len(rows["ids"])

    def run(begun: np.ndarray, at_once: int) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        of_batch = {name: column[begun] for name, column in rows.items()}
        for some, columns in stream_batch(kind, loaded, spec, of_batch, at_once, (int(begun[0]), total)):
            yield begun[some], columns

    yield from run_batches(np.arange(total), batch, refill, loaded.device, run)


def decode(kind: str, loaded: Any, spec: dict[str, Any], rows: Rows, batch: int, refill: bool = False) -> Shard:
    """Decode all rows by the method of `spec`, `batch` of them at once; return the shard, without provenance. refill: a
    waiting row takes the place of one that is done, if the method declares REFILLS."""
    refill = refill and declaration(kind, spec["method"]).REFILLS
    total = len(rows["ids"])

    def run(begun: np.ndarray, at_once: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        of_batch = slice_rows(rows, slice(int(begun[0]), int(begun[-1]) + 1))
        yield begun, decode_batch(kind, loaded, spec, of_batch, at_once, (int(begun[0]), total))

    decoded = (columns for _, columns in run_batches(np.arange(total), batch, refill, loaded.device, run))
    label = f"{spec['method']} {dump_canonical(spec['options'])}"
    return Shard(join(list(progress(decoded, 1 if refill else -(-total // batch), label))))
