"""The house: imports run downwards, and planning needs no torch."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from parity.experiment import code_digest

STAGES = (  # stages from the top: a module may import from its own stage and from those listed after it
    "recipes", "new", "generate", "tune", "compare", "report", "certify", "measure", "equality", "stand_ins", "metrics",
    "decode", "inputs", "models", "experiment", "embedded", "base", "parity_decoders", "parity_certify",
)  # fmt: skip
MODULES = sorted(
    ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    for package, root in code_digest.ROOTS.items()
    for p in (root / package).rglob("*.py")
)
HEAVY = {"torch", "transformers", "numpy", "pandas", "scipy", "matplotlib", "safetensors"}


def find_stage(module):
    """Find the stage of a module: its package, or for a module of `parity` the folder in it; "" for `parity` itself."""
    first, *rest = module.split(".")
    return first if first != "parity" else rest[0] if rest else ""


def test_imports_run_downwards():
    assert {find_stage(m) for m in MODULES} - {""} <= set(STAGES)
    edges = [(a, b) for a in MODULES for b in code_digest.list_imports(a) if find_stage(b)]
    upwards = [(a, b) for a, b in edges if STAGES.index(find_stage(a)) > STAGES.index(find_stage(b))]
    assert not upwards
    assert len(edges) > 500


def test_planning_imports_no_torch():
    """What the rules import while they are parsed, in a Python of its own; the metrics beside, which do."""
    planning = [m for m in MODULES if find_stage(m) == "experiment"]
    planning += ["parity.base.machine", "parity.base.verdict_table"]

    def list_imported(*modules):
        """Import modules in a fresh process and list the packages that are loaded then, as a set."""
        script = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        return set(subprocess.run([sys.executable, "-c", script], text=True, capture_output=True).stdout.split())

    assert not list_imported(*planning) & HEAVY
    assert "numpy" in list_imported("parity.metrics.estimates") & HEAVY


@pytest.mark.parametrize(("limit", "is_long", "fails"), [(-1, False, True), (-1, True, False), (1e9, False, False)])
def test_a_test_that_takes_long_without_the_marker_fails(pytestconfig, monkeypatch, limit, is_long, fails):
    (suite,) = (plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "LIMIT"))
    wrapper = suite.pytest_runtest_call(SimpleNamespace(get_closest_marker=lambda name: is_long))
    next(wrapper)
    with monkeypatch.context() as patch, pytest.raises(pytest.fail.Exception if fails else StopIteration):
        patch.setattr(suite, "LIMIT", limit)
        wrapper.send(None)
