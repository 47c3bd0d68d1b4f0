"""The house: arrows run downwards, no circle, nothing too long to read at once, no torch where jobs are planned."""

import ast
from pathlib import Path

import pytest

from parity.experiment import code_digest
from parity.experiment.module_metadata import PACKAGE

STAGES = (  # from the top: a module imports its own stage or those behind it
    "new", "report", "training", "certify", "measure", "equality", "stand_ins", "metrics", "decode", "inputs",
    "decoders", "models", "experiment", "embedded", "base", "parity_certify",
)  # fmt: skip
MODULES = sorted(
    ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    for root, package in ((PACKAGE.parent, "parity"), (code_digest.STATISTICS, "parity_certify"))
    for p in (root / package).rglob("*.py")
)
HEAVY = {"torch", "transformers", "numpy", "pandas", "scipy", "matplotlib", "safetensors"}


def stage(module):
    first, *rest = module.split(".")
    return first if first == "parity_certify" else rest[0] if rest else ""


def test_every_module_stands_in_a_stage():
    assert {stage(m) for m in MODULES} - {""} <= set(STAGES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downwards(module):
    own = stage(module)
    for other in code_digest.direct(module):
        if stage(other):
            assert STAGES.index(own) <= STAGES.index(stage(other)), f"{module} imports {other}"


def test_no_circle():
    """Packages aside: `from package import module` names the package too."""
    state: dict[str, int] = {}

    def visit(module, path):
        if state.get(module) == 1:
            raise AssertionError(" -> ".join([*path[path.index(module) :], module]))
        if module not in state:
            state[module] = 1
            for other in code_digest.direct(module):
                if (code_digest.file_of(other) or Path()).name != "__init__.py":
                    visit(other, [*path, module])
            state[module] = 2

    for module in MODULES:
        visit(module, [])


def top_level_imports(module):
    """Packages that importing a module brings in, other modules of ours aside."""
    for node in ast.parse(code_digest.file_of(module).read_text()).body:
        if isinstance(node, ast.Import):
            yield from (a.name.partition(".")[0] for a in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_planning_needs_no_torch():
    """What the rules import while they are parsed: the experiment, the readers of text data."""
    planned = [m for m in MODULES if stage(m) == "experiment"] + ["parity.inputs.readers", "parity.base.machine"]
    for module in code_digest.closure(*planned):
        heavy = HEAVY & set(top_level_imports(module)) - (
            {"numpy"} if stage(module) == "embedded" or module == "parity.base.files" else set()
        )
        assert not heavy, f"{module} imports {heavy}"
