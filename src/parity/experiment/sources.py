"""Which sources a job depends on: the import closure of the modules that it runs, computed without importing them.

A rule passes `digest("parity.metrics.__main__", ...)` as a parameter, so an edit of any module that the job imports
runs it again, and an edit of no other does. Docstrings and comments are no part of the digest: writing punishes nobody.
Modules that a job imports by name (a decoder, a model family) are given beside its command.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parity.experiment.declared import PACKAGE

ROOT = PACKAGE.parent


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of this package, None for anything else."""
    if module.partition(".")[0] != "parity":
        return None
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> Iterator[str]:
    """Modules of this package that a source file imports, also inside functions, and the packages they are in."""
    for node in ast.walk(tree(file)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


@cache
def direct(module: str) -> frozenset[str]:
    """Modules of this package that a module imports itself."""
    file = file_of(module)
    return frozenset(m for m in imported(file) if file_of(m)) - {module} if file else frozenset()


def closure(*modules: str) -> list[str]:
    """The modules and all of this package that they import, directly or not. ValueError for one that is not there."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if file_of(module) is None:
            raise ValueError(f"{module}: no module of this package")
        if module not in found:
            found.add(module)
            parts = module.split(".")
            packages = [".".join(parts[:n]) for n in range(1, len(parts))]
            waiting += [package for package in packages if file_of(package)]
            waiting += direct(module)
    return sorted(found)


@cache
def own_digest(module: str) -> str:
    """Of a module's code, and of the templates that lie beside it."""
    file = file_of(module)
    assert file is not None
    parsed = ast.parse(file.read_text(encoding="utf-8"))  # a copy of its own: docstrings are cut
    for node in ast.walk(parsed):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = body[1:]
    whole = hashlib.sha256(ast.dump(parsed).encode())
    if file.name == "__init__.py":
        for template in sorted((file.parent / "templates").glob("*")):
            whole.update(template.read_bytes())
    return whole.hexdigest()


def digest(*modules: str) -> str:
    """Of the code that `modules` run, docstrings and comments aside: 12 hex digits."""
    whole = [f"{module} {own_digest(module)}" for module in closure(*modules)]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:12]
