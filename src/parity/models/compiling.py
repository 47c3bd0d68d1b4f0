"""A pass of a network compiled, or run as it is where that fails."""

import sys
from collections.abc import Callable
from typing import Any

import torch

MANY = 16  # tokens of a pass from which on packed weights are faster on a CPU


class CompiledPass:
    """A function of one network compiled with torch.compile. With `dynamic` or on a CPU one graph serves all shapes,
    because done rows leave the batch and a cache is read as far as it is written. Otherwise each set of shapes has a
    graph. If compilation fails, the first call says so in one line and the function runs uncompiled: `failed` is true.

    CUDA does not capture the graphs: it would need caches that stay where they are, and each batch has new ones.

    Call it with one network alone: its weights are constants of the graph, and no guard checks that they are the same.
    On a CPU such checks take a third of a small network's pass over one token.
    """

    def __init__(self, function: Callable[..., Any], device: str, dynamic: bool = False):
        self.function = function
        self.device = device
        self.failed = False
        settings: dict[str, Any] = {
            "options": {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe},
            "isolate_recompiles": True,
            "recompile_limit": 64,
        }
        self.fast = torch.compile(function, dynamic=dynamic or device == "cpu", fullgraph=True, **settings)

    def __call__(self, *arguments: Any) -> Any:
        from torch._inductor import config as inductor  # takes a second to import, and most jobs compile nothing

        if not self.failed:
            try:
                x = next(a for a in arguments if isinstance(a, torch.Tensor))
                # read when a graph is compiled: whether it packs the weights
                inductor.freezing = self.device == "cpu" and x.shape[:-1].numel() >= MANY
                return self.fast(*arguments)
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                self.failed = True
                cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                print(f"compile: {self.function.__name__}: {cause}; it runs as it is", file=sys.stderr)
        return self.function(*arguments)
