"""Imports run downwards, planning needs no torch, packages have one version wherever they are named, links lead
somewhere."""

import re
import subprocess
import sys
import tomllib

import pytest

from parity.experiment import code_digest
from tests.workflow.conftest import ROOT

STAGES = (  # stages from the top: a module may import from its own stage and from those listed after it
    "recipes", "new", "methods", "train", "serve", "verify", "generate", "tune", "compare", "report",
    "certify", "measure", "equality", "stand_ins", "metrics", "decode", "inputs", "models", "experiment", "embedded",
    "job", "base", "parity_decoders", "parity_certify",
)  # fmt: skip
MODULES = sorted(
    ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    for package, root in code_digest.ROOTS.items()
    for p in (root / package).rglob("*.py")
)
IMPORTED = re.compile(r"^\s*(?:from ((?:parity|recipes)[\w.]*) import|import ((?:parity|recipes)[\w.]*))", re.MULTILINE)
HEAVY = {"torch", "transformers", "numpy", "pandas", "scipy", "matplotlib", "safetensors"}


def find_stage(module):
    """Find the stage of a module: its package, or for a module of `parity` the folder in it; "" for `parity` itself."""
    first, *rest = module.split(".")
    return first if first != "parity" else rest[0] if rest else ""


def test_imports_run_downwards():
    assert {find_stage(m) for m in MODULES} - {""} <= set(STAGES)
    texts = {module: file.read_text() for module in MODULES if (file := code_digest.find_file(module))}
    edges = [(a, first or second) for a in texts for first, second in IMPORTED.findall(texts[a])]
    edges = [(a, b) for a, b in edges if find_stage(b) in STAGES]
    upwards = [(a, b) for a, b in edges if STAGES.index(find_stage(a)) > STAGES.index(find_stage(b))]
    assert not upwards
    assert len(edges) > 500


def test_planning_imports_no_torch():
    """What the rules import while they are parsed, in a Python of its own; the metrics beside, which do."""
    planning = [m for m in MODULES if find_stage(m) == "experiment"]
    planning += ["parity.base.machine", "parity.base.verdict_table"]

    def list_imported(*modules):
        script = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        return set(subprocess.run([sys.executable, "-c", script], text=True, capture_output=True).stdout.split())

    assert not list_imported(*planning) & HEAVY
    assert "numpy" in list_imported("parity.metrics.estimates") & HEAVY


def test_the_table_of_folders_has_every_stage_in_order():
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == [
        s for s in STAGES if (ROOT / "src/parity" / s).is_dir()
    ]


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


LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(("probs", "verdict"), [("p=P", "certified lossless"), ("p=[0.6, 0.2, 0.2]", "lossy")])
def test_the_certifiers_lines_of_python_judge(probs, verdict, capsys):
    """As they stand, and with a sampler that draws token 0 too often."""
    page = (ROOT / "certify/README.md").read_text(encoding="utf-8")
    lines = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    assert "p=P" in lines
    exec(lines.replace("p=P", probs), {})
    assert capsys.readouterr().out.startswith(f"sample: {verdict}")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target
