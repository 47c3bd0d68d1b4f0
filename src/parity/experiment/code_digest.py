"""Which sources a job depends on: the import closure of the modules that it runs, computed without importing them.

A rule passes `digest("parity.metrics.__main__", ...)` as a parameter, so an edit of any module that the job imports
runs it again, and an edit of no other does. Docstrings and comments are no part of the digest, so editing them repeats
nothing. Modules that a job imports by name (a decoder, a model family) are listed beside its command. Statistics are
parity-certify's: its modules are followed as those of `parity` are.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import parity_certify

from parity.experiment.module_metadata import PACKAGE

ROOT = PACKAGE.parent
STATISTICS = Path(parity_certify.__file__).parents[1]
OWN = ("parity", "parity_certify")


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of the two packages, None for anything else."""
    if module.partition(".")[0] not in OWN:
        return None
    path = (ROOT if module.partition(".")[0] == "parity" else STATISTICS) / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a source imports, also inside functions, and the packages they are in."""
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree itself, its docstrings cut."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = body[1:]
    return tree


@cache
def facts(file: Path) -> tuple[str, list[str]]:
    """Digest of a source's code, and the modules of the two packages that it may import."""
    tree = ast.parse(file.read_bytes())
    names = sorted({name for name in imported(tree) if name.partition(".")[0] in OWN})
    return hashlib.sha256(ast.dump(without_docstrings(tree)).encode()).hexdigest(), names


@cache
def direct(module: str) -> frozenset[str]:
    """Modules of this package that a module imports itself."""
    file = file_of(module)
    return frozenset(m for m in facts(file)[1] if file_of(m)) - {module} if file else frozenset()


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
    templates = sorted((file.parent / "templates").glob("*")) if file.name == "__init__.py" else []
    return hashlib.sha256(b"".join([facts(file)[0].encode(), *(t.read_bytes() for t in templates)])).hexdigest()


@cache
def digest(*modules: str) -> str:
    """Of the code that `modules` run, docstrings and comments aside: 12 hex digits."""
    whole = [f"{module} {own_digest(module)}" for module in closure(*modules)]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:12]
