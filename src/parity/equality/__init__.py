"""Does a decoder draw from the target's law? Tests of known size and stated power, in layers (docs/equality.md).

from parity.equality import certify
print(certify(my_decoder, n=100_000, window=4))
"""

from importlib import import_module
from typing import Any

__all__ = ["Certificate", "certify"]


def __getattr__(name: str) -> Any:
    """The two names above, on demand and by name: what needs no torch starts sooner, no layer depends on others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("parity.equality.certificate"), name)
