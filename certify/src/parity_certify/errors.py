"""Errors that a user can mend: one line that names the key, the value and what is allowed."""


class ParityError(ValueError):
    """What was given cannot be used: data, files, models. The message is one line, which a command shows."""

    def __str__(self) -> str:
        """Return the message in one line, what is not printable escaped: a key or value in it may hold anything."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())
