"""Errors that a user can mend: one line that names the key, the value and what is allowed."""


class ParityError(ValueError):
    """What was given cannot be used: data, files, models. The message is one line; `base.command.one_line` shows it."""


class ConfigError(ParityError):
    """A configuration that cannot run; the message is one line that names the key, the value and what is allowed."""
