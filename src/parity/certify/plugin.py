"""Where environments made before parity-certify look for the pytest plugin; `uv sync` makes them look there."""

from parity_certify.plugin import assert_lossless

__all__ = ["assert_lossless"]
