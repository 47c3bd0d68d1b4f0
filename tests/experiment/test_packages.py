"""What is installed: the same versions wherever they are named, every file by its hash, and no address; and what README
does."""

import re
import tomllib

import pytest

from tests.workflow.conftest import ROOT

LOCK = ROOT / "envs/requirements.txt"
PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[a-z,]+\])?==([^\s;\\]+)", re.MULTILINE)


def normalise_name(name):
    """Write a package's name as pip compares it: lower case, single hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock():
    """Read the versions of the lock file by the package's normalised name."""
    return {normalise_name(name): version for name, version in PINNED.findall(LOCK.read_text())}


def test_the_lock_has_the_versions_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = project["project"]["dependencies"] + project["tool"]["uv"]["constraint-dependencies"]
    pinned = {normalise_name(name): version for name, version in PINNED.findall("\n".join(lines))}
    lock = read_lock()
    assert {normalise_name(n) for n, _ in PINNED.findall("\n".join(project["project"]["dependencies"]))} <= set(lock)
    assert {name: v for name, v in lock.items() if pinned.get(name) != v} == {}, "run .ci/lock"


def test_every_package_of_the_lock_has_hashes_and_no_address():
    text = LOCK.read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert len(entries) == len(read_lock()) > 100
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]
    assert "://" not in text
    assert "--index" not in text

    pinned = dict(PINNED.findall("\n".join(re.findall(r"- (\S+==\S+)", (ROOT / "envs/parity.yaml").read_text()))))
    assert len(pinned) > 100  # the conda environment does pin its packages
    assert {name: v for name, v in pinned.items() if read_lock().get(normalise_name(name), v) != v} == {}


README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


def find_block(language):
    return re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]


@pytest.mark.parametrize(("law", "verdict"), [("p=P", "certified lossless"), ("p=[0.6, 0.2, 0.2]", "lossy")])
def test_its_lines_of_python_judge(law, verdict, capsys):
    """As they stand, and with a sampler that draws token 0 too often."""
    lines = find_block("python")
    assert "p=P" in lines
    exec(lines.replace("p=P", law), {})
    assert capsys.readouterr().out.startswith(f"my_sampler: {verdict}")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target
