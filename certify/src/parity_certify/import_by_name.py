"""Read what a command line names: modules, functions in them, options, times."""

import argparse
import json
import os
import sys
from importlib import import_module, util
from pathlib import Path
from typing import Any

from parity_certify.errors import ParityError


def import_named_module(module: str) -> Any:
    """Import a module by name. Raises ParityError if it does not exist, not if only a module that it imports does
    not."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not error.name or not module.startswith(error.name):
            raise  # the module exists, but imports one that does not
        raise ParityError(f"{module}: no such module") from None


def load(name: str) -> Any:
    """Load the object that `package.module:name` or `path/file.py:name` names; this runs the module. A module is also
    searched for in the current folder. Raises ParityError if there is no such module, file or name."""
    module, colon, function = name.rpartition(":")
    if not colon:
        raise ParityError(f"{name}: allowed: MODULE:FUNCTION or FILE.py:FUNCTION")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise ParityError(f"{module}: no such file")
        spec = util.spec_from_file_location(Path(module).stem, module)
        loaded = util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[Path(module).stem] = loaded
        spec.loader.exec_module(loaded)  # type: ignore[union-attr]
    else:
        sys.path.insert(0, os.getcwd())
        loaded = import_named_module(module)
    if not hasattr(loaded, function):
        raise ParityError(f"{module}: has no {function!r}")
    return getattr(loaded, function)


class Loaded:
    """A function loaded by name ("FILE.py:FUNCTION") and pickled as this name, so that another process loads it."""

    def __init__(self, name: str):
        self.name, self.function = name, load(name)
        self.__name__ = name.rpartition(":")[2]
        self.__wrapped__ = self.function  # whose signature this has

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Loaded, (self.name,)


def parse_duration(text: str) -> float:
    """Parse "30s", "2m", "1h" or "30" to seconds. Raises ArgumentTypeError for anything else."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        seconds = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: a time above 0, as 30s, 2m or 1h")
    return seconds


def parse_option(text: str) -> tuple[str, Any]:
    """Parse "key=value", the value as JSON (4, 0.5, true) or else text. ArgumentTypeError if there is no "="."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def get_function_name(function: Any) -> str:
    """Return the name of a function, of the one inside functools.partial, or else of the object's class."""
    return getattr(getattr(function, "func", function), "__name__", type(function).__name__)
