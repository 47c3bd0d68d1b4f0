"""Every file and module that docs, docstrings and comments name exists."""

import ast
import re
import subprocess

import pytest

from tests.workflow.conftest import ROOT

FOLDERS = {
    "parity": "src/parity",
    "parity_certify": "certify/src/parity_certify",
    "parity_decoders": "decoders/src/parity_decoders",
}
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/[\w-]+\.(?:py|smk|yaml|md|csv|txt)")
MODULE = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:\.\w+)+")
# what is written by a run or a reader, or is in somebody else's repository, and history
OTHERS = re.compile(r"results/|NAME|mine\b|own\b|vllm/|samd|\w+/modeling_")
LEFT_OUT = ("CHANGELOG.md", "docs/results/field.md", "field/")


def list_tracked():
    """List the files of the repository that hold text for a reader."""
    command = ["git", "-C", str(ROOT), "ls-files", "*.md", "*.py"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if not name.startswith(LEFT_OUT)]


def read_prose(name):
    """Read what a file says to a reader: a page whole, of Python its docstrings and comments."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".md"):
        return text
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    return "\n".join([*docstrings, *re.findall(r"#(.*)", text)])


def is_file_here(path):
    """Return whether a path is a file below the repository, a package, or one of these."""
    return any((ROOT / folder / path).exists() for folder in ("", "src", "src/parity", "decoders/src", "certify/src"))


def is_name_here(name):
    """Return whether a dotted name is a module, or stands in the module before it."""
    package, *parts = name.split(".")
    folder = ROOT / FOLDERS[package]
    for i, part in enumerate(parts):
        if (folder / part).is_dir():
            folder = folder / part
            continue
        file = folder / f"{part}.py"
        module, rest = (file, parts[i + 1 :]) if file.is_file() else (folder / "__init__.py", parts[i:])
        return not rest or bool(re.search(rf"\b{rest[0]}\b", module.read_text(encoding="utf-8")))
    return True


def find_absent(text):
    """List the files and modules in backticks of a text that do not exist."""
    absent = []
    for name in re.findall(r"`([^`\s]+)`", text):
        if OTHERS.search(name):
            continue
        if (PATH.fullmatch(name) and not is_file_here(name)) or (MODULE.fullmatch(name) and not is_name_here(name)):
            absent.append(name)
    return absent


@pytest.mark.parametrize("text", ["`models/discrete/gone.py`", "`parity.report.gone`", "`parity.report.cost.gone`"])
def test_a_name_that_is_gone_is_found(text):
    assert find_absent(f"See {text}.")


def test_every_file_and_module_that_is_named_exists():
    absent = {name: found for name in list_tracked() if (found := find_absent(read_prose(name)))}
    assert absent == {}
