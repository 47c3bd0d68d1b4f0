"""Every snippet of the documentation runs: Python, commands with their first lines of output, and options.

A Python block whose first line names a file is written to it. Under a command stand lines that its output contains.
Blocks of `options` need a server or a model: the command line must parse.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parity_certify.__main__ import make_parser

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "reference"] + [ROOT / "README.md"]
BLOCK = re.compile(r"^```(python|console|options)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def run_console(text: str) -> None:
    """Run a block's commands; assert that each prints its expected lines and fails exactly if one says "lossy"."""
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *expected = block.strip().splitlines()
        words = shlex.split(line)
        programs = {name: [sys.executable, "-m", name.replace("-", "_")] for name in ("parity-certify", "pytest")}
        words[:1] = (programs | {"cc": [str(COMPILER)]}).get(words[0], words[:1])
        completed = subprocess.run(words, capture_output=True, text=True, check=False)
        for one in expected:
            assert one in completed.stdout, (line, one, completed.stdout, completed.stderr)
        lossy = any(": lossy" in one for one in expected)
        assert completed.returncode == (1 if lossy else 0), (line, completed.stdout, completed.stderr)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_snippet_of_a_page_runs(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks, f"{page.name}: no snippet"
    if any("cc -O2" in text for _, text in blocks) and COMPILER is None:
        pytest.skip("no C compiler")
    shutil.copy(ROOT / "examples/c/engine.c", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    names = {"__name__": page.stem}
    for kind, text in blocks:
        if kind == "console":
            run_console(text)
        elif kind == "options":
            for line in text.strip().splitlines():
                make_parser().parse_args(shlex.split(line.partition(" -- ")[0])[1:])
        elif match := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / match[1]).write_text(text)
        else:
            exec(compile(text, str(page), "exec"), names)
