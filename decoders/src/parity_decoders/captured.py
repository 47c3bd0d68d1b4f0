"""A decoder's pass captured as a graph, so that repeating it costs the host one call."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from parity_decoders.passes import Passes
from parity_decoders.steps import Step

REACHES = (512, 1024, 2048)  # positions of an image that a recorded pass attends to; the next one: all


class Recording(Protocol):
    """The calls of a pass, to be made again."""

    def replay(self) -> Step:
        """Make the pass, and return its step, which later passes leave as it is."""
        ...


Record = Callable[[Callable[[], Step], Any], Recording]  # records a pass, beside a recording made before


class Captured:
    """A pass of a decoder as a CUDA graph."""

    def __init__(self, run: Callable[[], Step], beside: "Captured | None" = None):
        """Record the calls of the pass `run`; nothing runs. beside: another whose memory it shares: a pass leaves
        nothing there, and its step is copied. Raises RuntimeError if a call cannot be recorded."""
        stream = torch.cuda.current_stream()
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, pool=None if beside is None else beside.graph.pool()):
                self.step = run()
        finally:
            torch.cuda.set_stream(stream)  # where recording fails, torch leaves its own

    def replay(self) -> Step:
        """Make a pass, and return its step."""
        self.graph.replay()
        tokens, n_kept, positions, nodes = self.step
        return Step(tokens.clone(), n_kept.clone(), positions.clone(), None if nodes is None else nodes.clone())


def capture(method: str, steps: Iterator[Step]) -> Iterator[Step]:
    """Return the steps of a decoder, made by recordings where its passes repeat; where they do not, the steps as they
    are, and the log says why."""
    if not isinstance(steps, Passes):
        reason = "it is a generator, not `Passes`"
    elif not steps.line.static:
        reason = "shapes of the model's passes follow from the rows that are open"
    else:
        return CapturedSteps(steps, Captured)  # looked up here, where a test may put a tape in its place
    say_once(f"capture: {method}: {reason}; passes run one by one")
    return steps


class CapturedSteps(Iterator[Step]):
    """The steps of a decoder, made by recordings of its passes where that works: `run_captured`."""

    def __init__(self, passes: Passes, record: Record):
        """Set the passes, and what records one."""
        self.passes = passes
        self.steps = run_captured(passes, record)

    @property
    def is_captured(self) -> bool:
        """Whether recordings make the passes by now."""
        return self.passes.is_captured

    def __next__(self) -> Step:
        return next(self.steps)


@cache
def say_once(line: str) -> None:
    """Print a line to the log, once in a job."""
    print(line, file=sys.stderr, flush=True)


def start_reading(x: Tensor) -> Callable[[], list[int]]:
    """Begin to copy x [n] int64 to the host; the function returned waits for it. Work that is launched meanwhile is not
    waited for."""
    if x.device.type != "cuda":
        values = x.tolist()
        return lambda: values
    copy, event = torch.empty(x.shape, dtype=x.dtype, pin_memory=True), torch.cuda.Event()
    copy.copy_(x, non_blocking=True)
    event.record()

    def wait() -> list[int]:
        event.synchronize()
        return copy.tolist()

    return wait


def choose_reach(positions: int, length: int) -> int:
    """Choose how many positions of an image a pass attends to that evaluates the first `positions` of them."""
    return next((n for n in REACHES if positions <= n < length), length)


@torch.inference_mode()
def run_captured(passes: Passes, record: Record = Captured) -> Iterator[Step]:
    """Yield the steps of a decoder whose passes repeat, made by recordings of them except for the first, which makes
    room. A recording is made for each of REACHES; before, a pass runs at each, the furthest first. A row with a longer
    prompt moves buffers, so recordings are made anew. While no row waits for a place, the host is a pass ahead: how far
    rows are is read while the next pass runs, whose step is discarded if all are done. If a pass cannot be recorded,
    the log says so, and all run as they are."""
    if (first := next(passes, None)) is None:
        return
    yield first
    line = passes.line
    model: Any = line.model
    length: int = model.length
    span = line.tokens.shape[1] - 1 - length  # tokens of a pass
    untried = [*(n for n in REACHES if n < length), length]
    recordings: dict[int, Recording | None] = {}
    prefix = model.prefix
    read: Callable[[], list[int]] | None = None
    while True:
        if read is None or line.waits():
            read = None
            line.take_waiting_rows()
            if prefix != (prefix := model.prefix):
                recordings = {}
            if line.is_done():
                return
            furthest = int(line.frontier.max())
        needed = furthest + 2 * span  # the pass before, of which nothing was read, has moved rows
        untried = [n for n in untried if n >= needed]
        reach = untried.pop() if untried else choose_reach(needed, length)
        model.attend(reach)
        if reach not in recordings:
            recordings[reach] = None  # the first pass runs as it is, which compiles it
            step = passes.run()
        else:
            try:
                beside = next(filter(None, recordings.values()), None)
                recording = recordings[reach] = recordings[reach] or record(passes.run, beside)
            except RuntimeError as error:
                say_once(f"capture: {str(error).strip().splitlines()[0][:200]}; passes run one by one")
                model.attend(length)
                passes.is_captured = False
                yield from passes
                return
            step = recording.replay()
            passes.is_captured = True
        if read is not None:
            nearest, furthest = read()
            if nearest >= line.end:
                return
        read = start_reading(torch.stack(line.frontier.aminmax()))
        yield step
