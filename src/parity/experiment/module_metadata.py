"""What modules declare, read from their source: literals such as CLAIM, and signatures.

A decoder, a model family, a metric and an equality layer are each one module of a folder. The workflow lists the folder
and reads each declaration without importing the module. A module that declares too little is a ConfigError that names
the file and what it lacks.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import ConfigError

PACKAGE = Path(__file__).parents[1]


class Outline(NamedTuple):
    """What stands at the top of a module, by name: values that are assigned, and functions; of two, the first."""

    values: dict[str, ast.expr]
    functions: dict[str, ast.FunctionDef]


def modules(package: str) -> tuple[str, ...]:
    """Names of the modules in a folder of the package, such as "decoders/discrete"."""
    return tuple(sorted(p.stem for p in (PACKAGE / package).glob("*.py") if not p.stem.startswith("__")))


@cache
def outline(package: str, module: str) -> Outline:
    """Of a module's source."""
    found = Outline({}, {})
    for node in ast.parse((PACKAGE / package / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.values.setdefault(node.targets[0].id, node.value)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.values.setdefault(node.target.id, node.value)
        if isinstance(node, ast.FunctionDef):
            found.functions.setdefault(node.name, node)
    return found


def constant(package: str, module: str, name: str, default: Any = None) -> Any:
    """The value of a literal that a module assigns; `default` if it assigns none."""
    value = outline(package, module).values.get(name)
    return default if value is None else ast.literal_eval(value)


def docstring(package: str, module: str) -> str:
    """A module's docstring; "" if it has none."""
    return ast.get_docstring(ast.parse((PACKAGE / package / f"{module}.py").read_text(encoding="utf-8"))) or ""


def function(package: str, module: str, name: str) -> ast.FunctionDef | None:
    """A function at the top of a module, its arguments with their annotations; or None."""
    return outline(package, module).functions.get(name)


def require(package: str, module: str, constants: tuple[str, ...], functions: tuple[str, ...] = ()) -> dict[str, Any]:
    """The constants by name; ConfigError that names the file and the first thing it lacks."""
    missing = object()
    values = {name: constant(package, module, name, missing) for name in constants}
    lacks = [name for name, value in values.items() if value is missing]
    lacks += [f"{name}(...)" for name in functions if function(package, module, name) is None]
    if lacks:
        raise ConfigError(
            f"src/parity/{package}/{module}.py: declares no {lacks[0]}; needed: {', '.join((*constants, *functions))}"
        )
    return values
