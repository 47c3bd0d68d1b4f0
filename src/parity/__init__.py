"""Does a fast decoder still draw from the model's distribution, and what does it save? `parity.load` makes images."""

import importlib
from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Import `load` on first use, by name: planning imports this package without torch, and no job's code depends on
    what it does not run."""
    if name == "load":
        return importlib.import_module("parity.generate").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
