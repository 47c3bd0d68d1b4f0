"""Errors that a user can fix: one line that names the key, the value and what is allowed."""

import traceback


def describe_error(error: BaseException) -> str:
    """Describe an error of code that is not ours in a line: its type, the first line of its message, and where it was
    raised."""
    words = ": ".join(filter(None, [type(error).__name__, str(error).strip().partition("\n")[0]]))
    frames = traceback.extract_tb(error.__traceback__)
    return f"{words} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else words


class ParityError(ValueError):
    """What was given cannot be used: data, files, models. The message is one line, which a command shows."""

    def __str__(self) -> str:
        """Return the message in one line, what is not printable escaped: a key or value in it may hold anything."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())
