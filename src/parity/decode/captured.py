"""Decoding by a CUDA graph: a pass that is captured once and repeated costs the host one call."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from parity_decoders.passes import Passes
from parity_decoders.steps import Step
from torch import Tensor


class Recording(Protocol):
    """The calls of a pass, to be made again."""

    def replay(self) -> Step:
        """Make the pass, and return its step, which later passes leave as it is."""
        ...


class Captured:
    """A pass of a decoder as a CUDA graph."""

    def __init__(self, passes: Passes):
        """Record the calls of the next pass; nothing runs."""
        self.line = passes.line
        counted = self.line.step, self.line.newest
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step = passes.run(self.line.end)
        self.line.step, self.line.newest = counted

    def replay(self) -> Step:
        """Make a pass, and return its step."""
        self.graph.replay()
        self.line.count_pass()
        tokens, n_kept, positions, nodes = self.step
        return Step(tokens.clone(), n_kept.clone(), positions.clone(), None if nodes is None else nodes.clone())


def start_reading(flag: Tensor) -> Callable[[], bool]:
    """Begin to copy one bool to the host; the function returned waits for it. Work that is launched meanwhile is not
    waited for."""
    if flag.device.type != "cuda":
        is_set = bool(flag)
        return lambda: is_set
    copy, event = torch.empty((), dtype=torch.bool, pin_memory=True), torch.cuda.Event()
    copy.copy_(flag, non_blocking=True)
    event.record()

    def wait() -> bool:
        event.synchronize()
        return bool(copy)

    return wait


@torch.inference_mode()
def run_captured(passes: Passes, record: Callable[[Passes], Recording] = Captured) -> Iterator[Step]:
    """Yield the steps of a decoder, each pass that repeats the one before by a recording of it; others run as they are.
    While no row waits for a place, the host is a pass ahead: whether all rows are done is read while the next pass
    runs, whose step is discarded if they are."""
    line = passes.line
    recording: Recording | None = None
    is_done: Callable[[], bool] | None = None
    while True:
        if is_done is None or line.waits() or not passes.repeats():
            is_done = None
            if not (remaining := line.count_remaining()):
                return
            if not passes.repeats():
                recording = None  # rows that join may move buffers
                yield passes.run(remaining)
                continue
        recording = recording or record(passes)
        step = recording.replay()
        if is_done is not None and is_done():
            return
        is_done = start_reading((line.frontier >= line.end).all())
        yield step
