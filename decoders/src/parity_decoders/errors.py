"""The error of this package."""


class DecodingError(ValueError):
    """What was given cannot be decoded. The message is one line that names the key, the value and what is allowed."""
