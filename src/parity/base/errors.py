"""Errors that a user can fix: one line that names the key, the value and what is allowed."""

from parity_certify.errors import ParityError

__all__ = ["ConfigError", "ParityError"]


class ConfigError(ParityError):
    """A configuration that cannot run; the message is one line that names the key, the value and what is allowed."""
