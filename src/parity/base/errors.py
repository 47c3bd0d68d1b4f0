"""Errors that a user can mend: one line that names the key, the value and what is allowed (`base.command.one_line` shows it)."""


class ParityError(ValueError):
    """What was given cannot be used; the message is one line. Raised for data, files and models: anything but the configuration."""


class ConfigError(ParityError):
    """A configuration that cannot run; the message is one line that names the key, the value and what is allowed."""
