"""What modules declare, read from their source: literals such as CLAIM, and signatures.

A decoder, a model family, a metric and an equality layer are each one module of a folder. The workflow lists the folder
and reads each declaration without importing the module. A module that declares too little is a ConfigError that names
the file and what it lacks.
"""

import ast
import contextlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import parity_decoders

from parity.base.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
DECODERS = Path(parity_decoders.__file__).parent


class Outline(NamedTuple):
    """A module's docstring, and by name what stands at its top: literals that are assigned, functions, and the names of
    the functions of each class."""

    doc: str
    values: dict[str, Any]
    functions: dict[str, ast.FunctionDef]
    classes: dict[str, tuple[str, ...]]


def find_folder(package: str) -> Path:
    """Return the folder of `package`, such as "metrics" of this package, or "decoders/discrete" of parity_decoders."""
    first, _, rest = package.partition("/")
    return DECODERS / rest if first == "decoders" else PACKAGE / package


def modules(package: str) -> tuple[str, ...]:
    """List the names of the modules in a folder of the package, such as "decoders/discrete"."""
    return tuple(sorted(p.stem for p in find_folder(package).glob("*.py") if not p.stem.startswith("__")))


@cache
def read_outline(package: str, module: str) -> Outline:
    """Read the outline of a module in the folder of `package` by parsing its source; nothing is imported."""
    return parse_outline(find_folder(package) / f"{module}.py")


@cache
def parse_outline(file: Path) -> Outline:
    """Read the outline of a module by its file. Raises SyntaxError for a file that is no Python."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    values: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name), *_], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                with contextlib.suppress(ValueError):  # a value that is no literal is left out
                    values.setdefault(name, ast.literal_eval(value))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {
        node.name: tuple(inner.name for inner in node.body if isinstance(inner, ast.FunctionDef))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return Outline(ast.get_docstring(tree) or "", values, functions, classes)


def read_constant(package: str, module: str, name: str, default: Any = None) -> Any:
    """Read the value of a literal that a module assigns; `default` if it assigns none."""
    return read_outline(package, module).values.get(name, default)


def find_function(package: str, module: str, name: str) -> ast.FunctionDef | None:
    """Find the syntax tree of a function at the top of a module; None if the module has no such function."""
    return read_outline(package, module).functions.get(name)


def require(package: str, module: str, constants: tuple[str, ...], functions: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the values of a module's constants by name. Raises ConfigError that names the file and the first constant or
    function that it lacks."""
    declared = read_outline(package, module)
    lacks = [name for name in constants if name not in declared.values]
    lacks += [f"{name}(...)" for name in functions if name not in declared.functions]
    if lacks:
        needed = ", ".join((*constants, *functions))
        raise ConfigError(f"src/parity/{package}/{module}.py: declares no {lacks[0]}; needed: {needed}")
    return {name: declared.values[name] for name in constants}
