"""The README does what it says: its commands, its configuration, its five lines of Python; no link leads nowhere."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from parity.experiment import checks
from parity.models.__main__ import added
from parity.models.discrete.t5 import t5_encoder
from tests.models.test_add import SMALL, lay
from tests.workflow.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


def block(language):
    """The first block of code in a language."""
    return re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]


def test_it_is_read_in_ten_minutes():
    assert len(README.splitlines()) <= 150


def test_its_two_commands_bring_uv_themselves():
    """Where `pip install` is refused outside an environment (PEP 668); CI takes the second line, and finds uv there."""
    first, second = block("").splitlines()
    fetch = "python3 -m venv .uv && .uv/bin/pip install uv && .uv/bin/uv run "
    assert first == f"{fetch}snakemake --cores all --resources gpu=1" and second == f"{fetch}pytest"
    assert 'PATH="$PWD/.uv/bin:$PATH"' in (ROOT / ".ci/run").read_text()


def test_a_checkpoint_of_ones_own_is_two_commands(tmp_path, monkeypatch, capsys):
    first, second = block("bash").splitlines()
    words = shlex.split(first, comments=True)
    assert words[:5] == ["uv", "run", "parity", "models", "add"] and words[-1] == "FOLDER"
    folder = lay(tmp_path / "released", SMALL)
    t5_encoder().save_pretrained(folder / "t5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["parity models", "add", words[5], str(folder)])
    added()
    written = Path(second.split("--configfile ")[1])
    assert f"written: {written}" in capsys.readouterr().out
    assert checks.load(yaml.safe_load(written.read_text())).models["xl"].network == SMALL


@pytest.mark.parametrize("own", [0.25, 0.4])
def test_its_lines_of_python_judge(own, capsys):
    """A sampler of the law passes; one that draws token 0 too often is found."""

    def my_sampler(prompts, seed):
        law = [own, *[(1 - own) / 3] * 3]
        return np.random.default_rng(seed).choice(4, size=(len(prompts), 4), p=law)

    names = {"my_conditionals": lambda prefixes: np.full((len(prefixes), 4), 0.25), "my_sampler": my_sampler}
    exec(block("python"), names)
    said = capsys.readouterr().out
    assert ("certified lossless" in said) == (own == 0.25) and ("lossy" in said) == (own != 0.25)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target
