"""Times calls of networks, by stand-ins that decoders are handed in the networks' place."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Call(NamedTuple):
    """A call of a network."""

    network: str  # "target", or the speculator: "drafter", "draft", "heads"
    seconds: float
    tokens: int  # number of tokens evaluated for a row; 0 if the call's first argument is no tensor


class Clock:
    """Times calls of networks, for which decoders are handed `Timed` ones. On a GPU the ends of a call are events of
    its stream, which nothing waits for; a captured call is counted alone."""

    def __init__(self, device: torch.device):
        self.is_cuda = device.type == "cuda"
        self.spans: list[tuple[str, Any, Any, int]] = []

    def stamp(self) -> Any:
        """Return the time now: seconds on a CPU, else a recorded CUDA event; None while a graph is captured."""
        if not self.is_cuda:
            return time.perf_counter()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self, role: str, call: Callable[..., Any], *inputs: Any) -> Any:
        """Return call(*inputs), and record when it began and ended, unless it is compiled as a part of a pass. role:
        see `Call`."""
        if torch.compiler.is_compiling():
            return call(*inputs)
        started = self.stamp()
        out = call(*inputs)
        tokens = 0
        if inputs and isinstance(inputs[0], Tensor):
            tokens = inputs[0].shape[1] if inputs[0].ndim > 1 else 1
        self.spans.append((role, started, self.stamp(), tokens))
        return out

    def count_repeated(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield steps of which a graph makes all but the first few, and count the calls of the first pass for each that
        it makes; their seconds are not known."""
        n = len(self.spans)
        calls: list[tuple[str, Any, Any, int]] = []
        for step in steps:
            if not calls:
                calls = [(role, None, None, tokens) for role, _, _, tokens in self.spans[n:]]
            elif len(self.spans) == n:
                self.spans += calls
            n = len(self.spans)
            yield step

    def list_calls(self) -> list[Call]:
        """List the calls so far, with their seconds; NaN of those that were replayed."""

        def measure(a: Any, b: Any) -> float:
            if a is None:
                return float("nan")
            return float(a.elapsed_time(b) / 1000 if self.is_cuda else b - a)

        return [Call(role, measure(a, b), n) for role, a, b, n in self.spans]


class Timed:
    """Stands in for a network, which does not change: a clock times some of its methods, and all else is its own. What
    the network calls itself is a part of its call."""

    def __init__(self, network: Any, role: str, clock: Clock, calls: tuple[str, ...] = ("logits", "tree")):
        """Time the methods `calls` of a network. role: see `Call`."""
        self._network = network
        for name in calls:
            setattr(self, name, partial(clock.time, role, getattr(network, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)
