"""A function compiled, or run as it is where that fails."""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch


@lru_cache
def compiled(function: Callable[..., Any], device: str, dynamic: bool = False) -> Callable[..., Any]:
    """`function` under torch.compile: one graph for all shapes if `dynamic` or on a CPU, where rows that are done leave
    the batch and a cache is read as far as it is written; else a graph for each set of shapes, captured
    (reduce-overhead). If it cannot be compiled, the first call says so in one line; then it runs uncompiled."""
    dynamic = dynamic or device == "cpu"
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    captured, failed = device == "cuda" and not dynamic, False
    mode = "reduce-overhead" if captured else "default"
    fast = torch.compile(function, dynamic=dynamic, fullgraph=True, mode=mode)

    def run(*arguments: Any) -> Any:
        nonlocal failed
        if not failed:
            try:
                out = fast(*arguments)
                return out.clone() if captured else out  # a captured graph overwrites its output
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                failed = True
                what = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                print(f"compile: {function.__name__}: {what}; it runs as it is", file=sys.stderr)
        return function(*arguments)

    return run
