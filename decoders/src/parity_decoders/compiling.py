"""A network, or a decoder's whole pass, compiled; each runs as it is where compiling fails."""

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from parity_decoders.passes import Passes
from parity_decoders.steps import Step

MOST = 64  # graphs of a pass that are compiled
MANY = 16  # tokens of a pass from which on packed weights are faster on a CPU


def copy_function(function: Any) -> Any:
    """Copy a function or method, its code too: torch keeps compiled graphs by code, and so has none of another network
    for the copy."""
    if isinstance(function, MethodType):
        return MethodType(copy_function(function.__func__), function.__self__)
    f = function
    return FunctionType(f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__)


class CompiledPass:
    """A function of one network compiled with torch.compile. With `dynamic` or on a CPU one graph serves all shapes,
    because done rows leave the batch and a cache is read as far as it is written. Otherwise each set of shapes has a
    graph. If compilation fails, the first call says so in one line and the function runs uncompiled: `failed` is true.

    Call it with one network alone: its weights are constants of the graph, and no guard checks that they are the same.
    On a CPU such checks take a third of a small network's pass over one token.
    """

    def __init__(self, function: Callable[..., Any], device: str, dynamic: bool = False):
        self.function = function
        self.device = device
        self.failed = False
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
        fixed = not (dynamic or device == "cpu")
        self.fast = torch.compile(copy_function(function), dynamic=not fixed, fullgraph=True, options=options)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():  # as a part of a larger graph
            return self.function(*arguments, **keywords)
        from torch._inductor import config as inductor  # takes a second to import, and most jobs compile nothing

        if not self.failed:
            try:
                x = next(a for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor))
                # read when a graph is compiled: whether it packs the weights
                torch._dynamo.config.recompile_limit = MOST
                inductor.freezing = self.device == "cpu" and x.shape[:-1].numel() >= MANY
                return self.fast(*arguments, **keywords)
            except torch._dynamo.exc.TorchDynamoException as error:
                self.failed = True
                say_failed(self.function.__name__, error)
        return self.function(*arguments, **keywords)


class CompiledSteps:
    """A decoder's pass compiled as one graph: the network, guidance, filters, noise, drafts and verification. The first
    pass runs as it is, because it makes room. If compilation fails, a line says so and all passes run as they are."""

    def __init__(self, run: Callable[[], Step]):
        """Set the pass."""
        self.run = run
        self.compiled: Callable[[], Step] | None = None

    def __call__(self) -> Step:
        """Make a pass and return its step."""
        if self.compiled is None:
            step = self.run()
            name = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
            setattr(torch._dynamo.config, name, MOST)  # the latter before torch 2.7
            self.compiled = torch.compile(self.run, fullgraph=True, dynamic=False)
            return step
        if self.compiled is not self.run:
            try:
                return self.compiled()
            except torch._dynamo.exc.TorchDynamoException as error:
                self.compiled = self.run
                say_failed("a whole pass", error)
        return self.run()


def compile_passes(steps: Iterator[Step]) -> Iterator[Step]:
    """Return the steps of a decoder whose passes are compiled whole, if they repeat; others only have their network
    compiled."""
    if isinstance(steps, Passes) and steps.line.static:
        return Passes(steps.line, CompiledSteps(steps.run))
    return steps


def say_failed(name: str, error: Exception) -> None:
    """Print that compilation of a function ended with an error."""
    cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    print(f"compile: {name}: {cause}; it runs as it is", file=sys.stderr)
