"""A pass of a network compiled, or run as it is where that fails."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config as inductor

MANY = 16  # tokens of a pass from which on packed weights are faster on a CPU


def compile_pass(function: Callable[..., Any], device: str, dynamic: bool = False) -> Callable[..., Any]:
    """`function` of one network under torch.compile: one graph for all shapes if `dynamic` or on a CPU, where rows that
    are done leave the batch and a cache is read as far as it is written; else a graph for each set of shapes, captured
    by CUDA, whose outputs are a tuple. If it cannot be compiled, the first call says so in one line; then it runs
    uncompiled.

    Call it with one network alone: its weights are constants of the graph, and no guard checks that they are the same.
    On a CPU such checks take a third of a small network's pass over one token.
    """
    dynamic = dynamic or device == "cpu"
    captured, failed = device == "cuda" and not dynamic, False
    settings: dict[str, Any] = {
        "options": {
            "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
            "triton.cudagraphs": captured,
        },
        "isolate_recompiles": True,
        "recompile_limit": 64,
    }
    fast = torch.compile(function, dynamic=dynamic, fullgraph=True, **settings)

    def run(*arguments: Any) -> Any:
        nonlocal failed
        if not failed:
            try:
                x = next(a for a in arguments if isinstance(a, torch.Tensor))
                # read when a graph is compiled: whether it packs the weights
                inductor.freezing = device == "cpu" and x.shape[:-1].numel() >= MANY
                out = fast(*arguments)
                return tuple(x.clone() for x in out) if captured else out  # a captured graph overwrites its outputs
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                failed = True
                cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                print(f"compile: {function.__name__}: {cause}; it runs as it is", file=sys.stderr)
        return function(*arguments)

    return run
