"""Decoders written for Parity, certified: what `parity-certify` (certify/) does for anyone's sampler.

from parity.certify import certify
print(certify(my_decoder, n=100_000, window=4))
"""

from typing import Any

__all__ = ["certify"]


def __getattr__(name: str) -> Any:
    """`certify` on demand: it brings torch along, which the command's other ways do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from parity.certify.decoder import certify

    return certify
