"""Seconds that decoding waits for networks, taken from outside: no decoder and no network knows of it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Call = tuple[Any, str]  # a network, and the method by which it is asked


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
def clocked(calls: Iterable[Call], device: torch.device) -> Iterator[Clock]:
    """A clock of every one of the calls that is made meanwhile."""
    clock, watched = Clock(device), list(calls)
    for network, name in watched:
        setattr(network, name, clock.timed(getattr(network, name)))
    try:
        yield clock
    finally:
        for network, name in watched:
            delattr(network, name)  # the class's own again
