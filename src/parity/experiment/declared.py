"""What modules say of themselves, read from their source: literals such as CLAIM, and signatures.

A decoder, a model family, a metric and an equality layer are each one module of a folder. The workflow finds them by
listing it, and reads what each declares without importing it. A module that declares too little is a ConfigError that
names the file and what it lacks.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError

PACKAGE = Path(__file__).parents[1]


def modules(package: str) -> tuple[str, ...]:
    """Names of the modules in a folder of the package, such as "decoders/discrete"."""
    return tuple(sorted(p.stem for p in (PACKAGE / package).glob("*.py") if not p.stem.startswith("__")))


@cache
def source(package: str, module: str) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse((PACKAGE / package / f"{module}.py").read_text(encoding="utf-8"))


def constant(package: str, module: str, name: str, default: Any = None) -> Any:
    """The value of a literal that a module assigns; `default` if it assigns none."""
    for node in source(package, module).body:
        if isinstance(node, ast.Assign) and node.targets[0].__dict__.get("id") == name:
            return ast.literal_eval(node.value)
        if isinstance(node, ast.AnnAssign) and node.target.__dict__.get("id") == name and node.value is not None:
            return ast.literal_eval(node.value)
    return default


def function(package: str, module: str, name: str) -> ast.FunctionDef | None:
    """The definition of a function at the top of a module, or None."""
    return next((n for n in source(package, module).body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def require(package: str, module: str, constants: tuple[str, ...], functions: tuple[str, ...] = ()) -> dict[str, Any]:
    """The constants by name; ConfigError that names the file and the first thing it lacks."""
    missing = object()
    said = {name: constant(package, module, name, missing) for name in constants}
    lacks = [name for name, value in said.items() if value is missing]
    lacks += [f"{name}(...)" for name in functions if function(package, module, name) is None]
    if lacks:
        raise ConfigError(
            f"src/parity/{package}/{module}.py: declares no {lacks[0]}; needed: {', '.join((*constants, *functions))}"
        )
    return said
