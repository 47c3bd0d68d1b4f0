"""Decoding by a CUDA graph: a pass that is captured once and repeated costs the host one call."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from parity_decoders.passes import Passes
from parity_decoders.steps import Step
from torch import Tensor

REACHES = (512, 1024, 2048)  # positions of a picture that a recorded pass attends to; the next one: all


class Recording(Protocol):
    """The calls of a pass, to be made again."""

    def replay(self) -> Step:
        """Make the pass, and return its step, which later passes leave as it is."""
        ...


class Captured:
    """A pass of a decoder as a CUDA graph."""

    def __init__(self, passes: Passes):
        """Record the calls of the next pass; nothing runs."""
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step = passes.run()

    def replay(self) -> Step:
        """Make a pass, and return its step."""
        self.graph.replay()
        tokens, n_kept, positions, nodes = self.step
        return Step(tokens.clone(), n_kept.clone(), positions.clone(), None if nodes is None else nodes.clone())


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
    """Choose how many positions of a picture a pass attends to that evaluates the first `positions` of them."""
    return next((n for n in REACHES if positions <= n < length), length)


@torch.inference_mode()
def run_captured(passes: Passes, record: Callable[[Passes], Recording] = Captured) -> Iterator[Step]:
    """Yield the steps of a decoder, each pass that repeats an earlier one by a recording of it; others run as they are.
    A recording is made for each of REACHES. While no row waits for a place, the host is a pass ahead: how far rows are
    is read while the next pass runs, whose step is discarded if all are done."""
    line = passes.line
    model: Any = line.model
    length: int = model.length
    span = line.tokens.shape[1] - 1 - length  # tokens of a pass
    recordings: dict[int, Recording | None] = {}
    read: Callable[[], list[int]] | None = None
    while True:
        if read is None or line.waits() or not passes.repeats():
            read = None
            if line.take_waiting_rows():
                recordings = {}  # rows that join may move buffers
            if line.is_done():
                return
            furthest = int(line.frontier.max())
            if not passes.repeats():
                yield passes.run()
                continue
        reach = choose_reach(furthest + 2 * span, length)  # the pass before, of which nothing was read, has moved rows
        model.attend(reach)
        if reach not in recordings:
            recordings[reach] = None  # the first pass runs as it is, which compiles it
            step = passes.run()
        else:
            recording = recordings[reach] = recordings[reach] or record(passes)
            step = recording.replay()
        if read is not None:
            nearest, furthest = read()
            if nearest >= line.end:
                return
        read = start_reading(torch.stack(line.frontier.aminmax()))
        yield step
