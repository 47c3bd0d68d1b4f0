"""Does a decoder draw from the target's law? Tests of known size and stated power, in layers, and a verdict (docs/equality.md).

from parity.equality import certify
print(certify(my_decoder, n=100_000, window=4))
"""

from typing import Any

__all__ = ["Certificate", "certify"]


def __getattr__(name: str) -> Any:
    """The two names above, on demand: the layers that need no torch start seconds sooner without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from parity.equality import certificate

    return getattr(certificate, name)
