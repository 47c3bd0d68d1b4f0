"""A pass of a network compiled, or run as it is where that fails."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from parity_decoders.captured import MOST, say_failed

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

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():  # as a part of a larger graph
            return self.function(*arguments)
        from torch._inductor import config as inductor  # takes a second to import, and most jobs compile nothing

        if not self.failed:
            try:
                x = next(a for a in arguments if isinstance(a, torch.Tensor))
                # read when a graph is compiled: whether it packs the weights
                torch._dynamo.config.recompile_limit = MOST
                inductor.freezing = self.device == "cpu" and x.shape[:-1].numel() >= MANY
                return self.fast(*arguments)
            except torch._dynamo.exc.TorchDynamoException as error:
                self.failed = True
                say_failed(self.function.__name__, error)
        return self.function(*arguments)
