"""The thread that owns the networks, and decodes a batch that waiting images join as others end."""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from parity_certify.seeding import derive_row_key
from parity_decoders.canvas import Canvas
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.steps import Step
from parity_decoders.undefined import refuse_undefined
from torch import Tensor

from parity.base.devices import is_out_of_memory
from parity.base.errors import ParityError
from parity.decode import loop
from parity.experiment.options import declaration
from parity.generate import Generator, lay_out
from parity.generate.animation import mask_open
from parity.inputs.prompts import encode
from parity.models.discrete.load import load_encoder


class Event(NamedTuple):
    """What became of a row: its image, a partial one, or why there is none."""

    row: "Row"
    image: Any = None  # PIL.Image; cells that are open in a partial one are grey
    passes: int = 0  # of the target; 0 for a partial image
    number: int = 0  # of a partial image
    problem: str = ""  # why there is no image
    is_refused: bool = False  # the model cannot read the prompt


@dataclass(eq=False)
class Row:
    """An image that a client asked for.

    number     its place among the images of its request, a part of the id that keys its noise
    post       takes its events, in the worker's thread
    partials   how many partial images are wanted
    sent       how many of them were sent
    is_wanted  false once its client has left
    """

    prompt: str
    seed: int
    number: int
    post: Callable[[Event], None]
    partials: int = 0
    sent: int = 0
    is_wanted: bool = True

    @property
    def key(self) -> int:
        """The key of its noise: that of the image of this number that `parity generate` makes of the prompt."""
        return derive_row_key(self.seed, f"{0:05d}/{self.number:03d}")


@dataclass
class Counts:
    """What the worker has done since it began."""

    images: int = 0
    passes: int = 0  # of the batch
    row_passes: int = 0  # passes that a row took part in, over rows
    tokens: int = 0  # that were drawn, over rows
    seconds: float = 0.0  # in which a batch ran
    failures: int = 0  # batches that ended with an error


class Full(Exception):
    """As many rows wait as may."""


class Closed(Exception):
    """No row is taken any more."""


class Worker:
    """Decodes rows by one method, up to `batch` at once: `run` is called in a thread, all else from any.

    waiting  rows that have no place yet, first come, first served
    running  rows that have one
    """

    def __init__(self, generator: Generator, method: str, chosen: Mapping[str, Any], batch: int, most_waiting: int):
        """Load the networks. most_waiting: how many rows may wait."""
        self.batch, self.most_waiting = batch, most_waiting
        self.refills = declaration("discrete", method).REFILLS
        self.loaded = generator.load_networks(method)
        self.manifest, self.device = generator.manifest, generator.device
        self.encoder = load_encoder(self.manifest, self.device)
        spec = {**generator.case.setting, "method": method, "options": dict(chosen), "dtype": generator.dtype}
        self.start = loop.start_decoding("discrete", self.loaded, spec)
        self.make_model = lambda columns: self.loaded.model(columns, spec["sampling"])
        self.wide = torch.float64 if generator.dtype == "float64" else torch.float32
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.counts = Counts()
        self.is_closed = False
        self.changed = threading.Condition()

    def add(self, rows: list[Row]) -> None:
        """Let rows wait. Raises Full if too many do, and Closed after `close`."""
        with self.changed:
            if self.is_closed:
                raise Closed
            if len(self.waiting) >= self.most_waiting:
                raise Full
            self.waiting.extend(rows)
            self.changed.notify()

    def drop(self, rows: list[Row]) -> None:
        """Forget rows: those that wait at once, those that run at the next pass."""
        with self.changed:
            for row in rows:
                row.is_wanted = False
            self.waiting = deque(row for row in self.waiting if row.is_wanted)

    def close(self) -> None:
        """Take no rows any more; `run` returns when those that are there have ended."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()

    def wait(self) -> bool:
        """Wait until a row waits, and return True; False if none does and none will."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.is_closed)
            return bool(self.waiting)

    def take(self, n: int) -> tuple[list[Row], dict[str, np.ndarray]]:
        """Take up to n of the rows that wait, and encode their prompts: columns by name. Rows whose prompts cannot be
        read are told so and left out."""
        with self.changed:
            rows = [self.waiting.popleft() for _ in range(min(n, len(self.waiting)))]
            self.running += rows
        try:
            return rows, self.encode(rows)
        except (ParityError, DecodingError):
            readable = [row for row in rows if self.can_read(row)]
            return readable, self.encode(readable)

    def encode(self, rows: list[Row]) -> dict[str, np.ndarray]:
        prompts = [row.prompt for row in rows]
        return encode(self.manifest, prompts, self.device, encoder=self.encoder) if prompts else {}

    def can_read(self, row: Row) -> bool:
        """Return whether a row's prompt can be encoded; tell it if not."""
        try:
            self.encode([row])
        except (ParityError, DecodingError) as error:
            self.end(row, Event(row, problem=str(error), is_refused=True))
            return False
        return True

    def end(self, row: Row, event: Event | None = None) -> None:
        """Let a row leave, and tell it why unless nobody wants to know."""
        self.running.remove(row)
        if event is not None:
            row.post(event)

    def run(self) -> None:
        """Decode until the worker is closed and no row is left."""
        while self.wait():
            error = self.run_batch()
            if error is not None:
                self.recover(is_out_of_memory(error), error)
                error = None  # it holds the batch's memory
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def recover(self, is_short: bool, error: Exception) -> None:
        """After an error, halve the batch if memory was short and let its rows wait again, or tell them of it."""
        rows = [row for row in self.running if row.is_wanted]
        self.running.clear()
        if is_short and self.batch > 1:
            print(f"out of memory: batch {self.batch}; {self.batch // 2} from here on", file=sys.stderr, flush=True)
            self.batch //= 2
            with self.changed:
                self.waiting.extendleft(reversed(rows))
            return
        traceback.print_exception(error)
        self.counts.failures += 1
        for row in rows:
            row.post(Event(row, problem=f"{type(error).__name__}: {error}"[:300]))

    def run_batch(self) -> Exception | None:
        """Decode a batch of those that wait, and of those that join it; return the error that ended it, if one did."""
        try:
            rows, columns = self.take(self.batch)
            if not rows:
                return None
            # on a GPU a pass costs the same with places that are empty, so a batch is as large as it may be and stays
            stays = self.refills and self.loaded.device.type != "cpu"
            batch = Batch(self, rows, self.batch if stays else len(rows), stays)
            model, _, steps = self.start(batch.fill_up(columns), batch.noise, batch if self.refills else None)
            batch.begin(model)
            resumed = time.monotonic()
            for step in steps:
                batch.write(model, step)
                self.counts.seconds += time.monotonic() - resumed
                if not any(batch.rows) and not (stays and self.wait()):
                    return None
                resumed = time.monotonic()
            if any(batch.rows):
                raise ParityError("the decoder stopped before the images were filled in")
        except Exception as error:
            return error
        return None


class Batch:
    """The places of a batch, which is the queue of its model (see `loop.Queue`): rows that wait take those that are
    free.

    rows    the row in each place; None in one that is free
    passes  of the row in each place
    left    tokens that are still to be drawn in each place
    """

    def __init__(self, worker: Worker, rows: list[Row], size: int, stays: bool):
        """Put rows in the first places of `size`. stays: see `waits`."""
        self.worker, self.stays = worker, stays
        self.rows: list[Row | None] = [*rows, *[None] * (size - len(rows))]
        self.passes = [0] * size
        self.is_open = stays or size == worker.batch
        self.noise = Noise(self.make_keys([*rows, *[rows[-1]] * (size - len(rows))]), worker.wide)

    def make_keys(self, rows: list[Row]) -> Tensor:
        return torch.tensor([row.key for row in rows], device=self.worker.loaded.device)

    def fill_up(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Repeat the last row's inputs in the places that are free."""
        n = len(next(iter(columns.values())))
        index = np.minimum(np.arange(len(self.rows)), n - 1)
        return {"ids": index.astype(str), **{name: column[index] for name, column in columns.items()}}

    def begin(self, model: Any) -> None:
        """Make the canvas of the model."""
        self.free = model.forced < 0
        self.n_free = int(self.free.sum())
        self.blank = model.forced.clamp(min=0)
        self.canvas = Canvas(self.blank.repeat(len(self.rows), 1))
        self.left = [self.n_free] * len(self.rows)

    def waits(self) -> bool:
        """Return whether rows may join. On a CPU a model leaves out rows that are done while none waits, which is less
        to compute: from then on none joins this batch. Nor does any join one that began with fewer rows than it may
        have: the next batch is larger."""
        self.is_open = self.is_open and (self.stays or bool(self.worker.waiting))
        return self.is_open

    def fill(self, model: Any, done: Tensor) -> Tensor | None:
        """Put waiting rows into free places, in the model and the noise too. Returns the places [B] bool that were
        filled; None if none was. done: not read, because a place is free as soon as its image was delivered."""
        began = torch.zeros_like(done)
        free = [place for place, row in enumerate(self.rows) if row is None]
        at_once = max(1, len(self.rows) // loop.REFILL_FRACTION)
        while free and self.worker.waiting:
            rows, columns = self.worker.take(min(at_once, len(free)))
            if not rows:
                continue
            places, free = torch.tensor(free[: len(rows)]), free[len(rows) :]
            keys = self.make_keys(rows)
            model.join(torch.zeros_like(done).index_fill_(0, places, True), self.worker.make_model(columns))
            self.noise.replace(places.to(keys.device), keys)
            self.canvas.tokens[places, :-1], self.canvas.step[places] = self.blank, 0
            for place, row in zip(places.tolist(), rows, strict=True):
                self.rows[place], self.passes[place], self.left[place] = row, 0, self.n_free
            began[places] = True
        return began.to(self.noise.keys.device) if bool(began.any()) else None

    def write(self, model: Any, step: Step) -> None:
        """Write a pass's step; deliver the images that ended with it and the partial ones that are due."""
        worker, canvas, L = self.worker, self.canvas, len(self.blank)
        canvas.write(step.find_places(L), step.tokens)
        n_open = ((canvas.step[:, :L] == 0) & self.free).sum(1)
        left, took_part = torch.stack([n_open, step.kept > 0]).tolist()
        worker.counts.passes += 1
        ended, due = [], []
        for place, row in enumerate(self.rows):
            if row is None:
                continue
            worker.counts.tokens += self.left[place] - left[place]
            worker.counts.row_passes += took_part[place]
            self.left[place] = left[place]
            self.passes[place] += took_part[place]
            drawn = 1 - left[place] / self.n_free
            if not row.is_wanted:
                worker.end(row)
                self.rows[place] = None
            elif left[place] == 0:
                ended.append(place)
            elif row.sent < row.partials and drawn >= (row.sent + 1) / (row.partials + 1):
                due.append(place)
        if ended:
            refuse_undefined(model, torch.tensor([place in ended for place in range(len(self.rows))]))
        for place, image in zip(ended + due, self.draw(ended + due), strict=True):
            row = self.rows[place]
            assert row is not None
            if place in ended:
                worker.end(row, Event(row, image, self.passes[place]))
                worker.counts.images += 1
                self.rows[place] = None
            else:
                row.post(Event(row, image, number=row.sent))
                row.sent += 1

    def draw(self, places: list[int]) -> list[Any]:
        """Draw the images in places, PIL.Image each, with cells grey that are open. Raises ParityError for tokens that
        are not in the vocabulary."""
        from PIL import Image

        if not places:
            return []
        loaded = self.worker.loaded
        open_ = (self.canvas.step[places, :-1] == 0).int().cpu().numpy()
        free = self.free.cpu().numpy()
        images = map(Image.fromarray, loaded.images(self.canvas.tokens[places, :-1]))
        return [mask_open(image, lay_out(row, free, loaded.width), 0) for image, row in zip(images, open_, strict=True)]
