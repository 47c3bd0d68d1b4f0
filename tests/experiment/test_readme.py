"""The README does what it says: its five lines of Python; no link leads nowhere."""

import re

import numpy as np
import pytest

from tests.workflow.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


def block(language):
    """The first block of code in a language."""
    return re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]


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
