"""What a result's code is: the modules that it is named by, and two numbers for the code that all results share.

A rule passes `digest("parity_decoders.discrete.sjd", ...)` as a parameter: an edit of one of these modules makes its
results anew, and an edit of any other module does not. Docstrings, comments, messages, help and a decoder's source in
words are no code. Samples are named by the decoder's module, the module of the model's family and ENGINE; a cell's rows
by the metrics and tests that made them and MEASURING.

A decoder of others is named by its file, "path/to/mine.py", or by all Python files of the installed package that holds
its module (`add_root`).
"""

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import parity_certify
import parity_decoders

from parity.base.files import read_json, write_json
from parity.experiment.module_metadata import PACKAGE

# Raise it by one when shared code changes what decoders draw: windows, verification, noise, the loop, the loading of
# models. tests/decode/test_golden.py fails until then.
ENGINE = 1
# Raise it by one when shared code changes what a metric, a test of equality or a time is.
MEASURING = 1

ROOT = PACKAGE.parent
STATISTICS = Path(parity_certify.__file__).parents[1]
DECODERS = Path(parity_decoders.__file__).parents[1]
# The folder that each of our packages is in. Only a clone of the repository has `recipes`.
ROOTS = {"parity": ROOT, "parity_certify": STATISTICS, "parity_decoders": DECODERS, "recipes": ROOT.parent}
OWN = frozenset(ROOTS)
SAID = {"description", "help", "title"}  # keywords whose value is for readers, as of `Field` and `add_argument`
NAMING = {"MARK", "SOURCE"}  # of a decoder: whose it is, in words
SAYING = {"print", "warn", "info", "warning"}  # functions that only say something


INSTALLED: dict[str, tuple[Path, ...]] = {}  # Python files that were installed with a module of others, by its name


def add_root(package: str, folder: Path, files: Iterable[Path]) -> None:
    """Let the modules of a further package, which lies in `folder`, be found. files: what was installed with it."""
    if package not in OWN:
        INSTALLED[package] = tuple(file for file in files if file.is_relative_to(folder) and file.is_file())
    if package not in ROOTS:
        ROOTS[package] = folder
        find_file.cache_clear()


@cache
def find_file(module: str) -> Path | None:
    """Find the file of a module of these packages, or of one that is named by its file; None for anything else."""
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    root = ROOTS.get(module.partition(".")[0])
    path = root and root / module.replace(".", "/")
    return path and next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@cache
def digest_source(file: Path) -> str:
    """Digest the code of a Python file, without what only readers see: docstrings, messages of errors and warnings,
    help, and a decoder's source in words."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
            case ast.Assign(targets=[ast.Name(id=name)]) if name in NAMING:
                node.value = ast.Constant(name)
            case ast.Raise(exc=ast.Call(func=raised)):
                node.exc = raised
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name in SAYING:
                node.value = ast.Constant(name)
            case ast.Call():
                node.keywords = [keyword for keyword in node.keywords if keyword.arg not in SAID]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def digest_files(folder: Path, files: list[Path]) -> str:
    """Digest files of a folder with their names: the code of Python files, the content of others."""
    contents = (digest_source(file) if file.suffix == ".py" else file.read_bytes().hex() for file in files)
    lines = [f"{file.relative_to(folder)} {content}" for file, content in zip(files, contents, strict=True)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def digest_module(module: str) -> str:
    """Digest the code of a module; of a package of ours all its files, with templates; of a module of others' package
    all Python files of that package. Raises ValueError for a module that does not exist."""
    file = find_file(module)
    if file is None:
        raise ValueError(f"{module}: no module of this package")
    top = module.partition(".")[0]
    if not module.endswith(".py") and top not in OWN:
        folder = ROOTS[top] / top
        own = folder.rglob("*.py") if folder.is_dir() else [file]
        return digest_files(ROOTS[top], sorted({*own, *INSTALLED.get(top, ())}))
    if file.name == "__init__.py":
        files = sorted(p for p in file.parent.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return digest_files(file.parent, files)
    return digest_source(file)


@cache
def digest(*modules: str, measured: bool = False) -> str:
    """Digest the code that a result is named by: 12 hex digits.

    modules   of ours, of others' packages, or files
    measured  whether it is a figure, a test or a time, for which MEASURING counts beside ENGINE
    """
    numbers = [f"engine {ENGINE}", *[f"measuring {MEASURING}"] * measured]
    lines = numbers + [f"{Path(module).name} {digest_module(module)}" for module in modules]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def describe_changes(used: Mapping[str, str], record: Path) -> list[str]:
    """Say what a run makes again because code has changed since the run that wrote `record`, a line each.

    used  by the name of a module, what is made again with it
    """
    recorded = read_json(record) if record.is_file() else {}
    shared = {"ENGINE": "everything", "MEASURING": "every figure, test and time"}
    numbers = [
        f"{name} of the code is {now}, and was {recorded[name]} at the last run: {shared[name]} is made again"
        for name, now in {"ENGINE": ENGINE, "MEASURING": MEASURING}.items()
        if recorded.get(name, now) != now
    ]
    return numbers + [
        f"{module} has changed since the last run: {made} made again"
        for module, made in used.items()
        if recorded.get(module, digest_module(module)) != digest_module(module)
    ]


def record_code(used: Iterable[str], record: Path) -> None:
    """Write which code a run has, for `describe_changes` of the next one; modules that it does not use stay."""
    recorded = read_json(record) if record.is_file() else {}
    numbers = {"ENGINE": ENGINE, "MEASURING": MEASURING}
    write_json(record, recorded | numbers | {module: digest_module(module) for module in used})
