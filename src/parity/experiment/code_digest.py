"""Which sources a job depends on: the import closure of the modules that it runs, computed without importing them.

A rule passes `digest("parity.metrics.__main__", ...)` as a parameter, so an edit of any module that the job imports
runs it again, and an edit of no other does. Docstrings and comments are no part of the digest, so editing them repeats
nothing. Modules that a job imports by name (a decoder, a model family) are listed beside its command; a decoder of
others is named by its file, "path/to/mine.py", or by the module of an installed package that has a root (`add_root`).
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

import parity_certify
import parity_decoders

from parity.experiment.module_metadata import PACKAGE

ROOT = PACKAGE.parent
STATISTICS = Path(parity_certify.__file__).parents[1]
DECODERS = Path(parity_decoders.__file__).parents[1]
# The folder that each of our packages is in. Only a clone of the repository has `recipes`.
ROOTS = {"parity": ROOT, "parity_certify": STATISTICS, "parity_decoders": DECODERS, "recipes": ROOT.parent}


def add_root(package: str, folder: Path) -> None:
    """Let the modules of a further package, which lies in `folder`, be followed."""
    if package not in ROOTS:
        ROOTS[package] = folder
        for cached in (find_file, list_imports, digest_module, digest):
            cached.cache_clear()


@cache
def find_file(module: str) -> Path | None:
    """Find the file of a module of these packages, or of one that is named by its file; None for anything else."""
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    root = ROOTS.get(module.partition(".")[0])
    path = root and root / module.replace(".", "/")
    return path and next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def list_statements(tree: ast.Module) -> list[ast.AST]:
    """List a module and all statements in it, at any depth. `ast.walk` lists expressions, too: twenty times as many."""
    found: list[ast.AST] = [tree]
    for node in found:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, None)
            found += inner if isinstance(inner, list) else []
    return found


@cache
def parse_source(file: Path) -> tuple[str, frozenset[str]]:
    """Parse a Python source: the digest of its code without docstrings and comments, and the names of all modules, or
    members of them, that it imports, also inside functions."""
    tree = ast.parse(file.read_bytes())
    names = set()
    for node in list_statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), frozenset(names)


@cache
def list_imports(module: str) -> frozenset[str]:
    """List the modules of these packages that a module imports directly; none if it is not of them."""
    file = find_file(module)
    return frozenset(name for name in parse_source(file)[1] if find_file(name)) - {module} if file else frozenset()


def list_closure(*modules: str) -> list[str]:
    """List modules, all of these packages that they import, directly or not, and the packages that contain these.
    Raises ValueError for a module that does not exist."""
    closure: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if find_file(module) is None:
            raise ValueError(f"{module}: no module of this package")
        if module not in closure:
            closure.add(module)
            names = module.split(".")
            packages = [".".join(names[:n]) for n in range(1, len(names))]
            waiting += [*list_imports(module), *filter(find_file, packages)]
    return sorted(closure)


@cache
def digest_module(module: str) -> str:
    """Digest a module's code and its data files: the folder `templates` of a package, the JSON file of its name."""
    file = find_file(module)
    assert file is not None
    data_files = sorted((file.parent / "templates").glob("*")) if file.name == "__init__.py" else []
    data_files += [data] if (data := file.with_suffix(".json")).is_file() else []
    return hashlib.sha256(b"".join([parse_source(file)[0].encode(), *(b.read_bytes() for b in data_files)])).hexdigest()


@cache
def digest(*modules: str, within: tuple[str, ...] = ("",)) -> str:
    """Digest the code of `modules` and of all modules of our packages that they import, docstrings and comments aside:
    12 hex digits. `within`: prefixes of the modules whose code counts, by default all."""
    closure = (module for module in list_closure(*modules) if module.startswith(within))
    lines = [f"{module} {digest_module(module)}" for module in closure]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
