"""What each stage may import: a job pays for every library, seconds each, and nobody asked for most."""

import json
import os
import subprocess
import sys

import pytest

from parity.experiment import module_metadata, study
from parity.experiment.options import KINDS, methods

# Libraries that take a job longer than numpy does. What a stage needs for some jobs alone it imports in a function.
DEAR = {
    "transformers", "tokenizers", "huggingface_hub", "datasets", "torchvision", "timm", "open_clip", "cleanfid",
    "torch_fidelity", "sklearn", "nltk", "rouge_score", "scipy", "pandas", "pyarrow", "matplotlib",
    "seaborn", "jinja2", "PIL", "pydantic", "rich", "snakemake", "yaml",
}  # fmt: skip
DECODERS = [f"parity.decoders.{kind}.{name}" for kind in KINDS for name in methods(kind)]
LOADING = [f"parity.models.{kind}.load" for kind in KINDS]
FAMILIES = [
    *(f"parity.models.discrete.{name}" for name in ("llamagen", "chameleon", "emu3", "janus")),
    "parity.models.anysubset.xlnet",
    "parity.models.continuous.mar",
]
METRICS = sorted({f"parity.metrics.{name}" for kind in KINDS for name in study.metrics(kind)})
SAMPLES = [f"parity.metrics.samples.{kind}" for kind in KINDS]
LAYERS = [
    f"parity.equality.layers.{kind}.{name}"
    for kind in KINDS
    for name in module_metadata.modules(f"equality/layers/{kind}")
]
TARGETS = [f"parity.equality.targets.{kind}" for kind in KINDS]
# The modules of a stage's jobs, and which dear libraries they may bring.
STAGES = {
    "planning": (["parity.experiment.checks", "parity.experiment.code_digest"], {"pydantic"}),
    "models": (["parity.models.__main__", "parity.models.fetch"], {"pydantic"}),
    "inputs": (["parity.inputs.__main__", "parity.inputs.captions", "parity.inputs.tasks"], {"pydantic"}),
    "decode": (["parity.decode.__main__", *LOADING, *FAMILIES, *DECODERS], {"pydantic", "scipy"}),
    "measure": (["parity.measure.__main__", *LOADING, *FAMILIES, *SAMPLES, *METRICS, *LAYERS], {"pydantic", "scipy"}),
    "equality": (["parity.equality.__main__", "parity.equality.exact", *TARGETS], {"pydantic", "scipy"}),
    "report": (
        ["parity.report.__main__"],
        {"pydantic", "scipy", "pandas", "pyarrow", "matplotlib", "seaborn", "jinja2", "PIL", "yaml"},
    ),
}
IMPORTS = """
import importlib, json, os, sys
import numpy, torch
already = set(sys.modules)
for name, modules in json.load(sys.stdin).items():
    out, into = os.pipe()
    child = os.fork()
    if not child:
        for module in modules:
            importlib.import_module(module)
        os.write(into, json.dumps(sorted({m.partition(".")[0] for m in set(sys.modules) - already})).encode())
        os._exit(0)
    os.close(into)
    print(name, os.fdopen(out).read())
"""


@pytest.fixture(scope="module")
def brought():
    """By stage the top-level names that importing its modules brings, beyond torch's and numpy's own."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], input=json.dumps({name: m for name, (m, _) in STAGES.items()}), text=True,
        capture_output=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return {line.split()[0]: set(json.loads(line.partition(" ")[2])) for line in done.stdout.splitlines()}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_what_it_needs(brought, stage):
    assert "parity" in brought[stage]
    assert brought[stage] & DEAR <= STAGES[stage][1]


TOPS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def tops(*modules):
    """Top-level names that importing modules brings to a bare Python."""
    return set(subprocess.run([sys.executable, "-c", TOPS, *modules], text=True, capture_output=True).stdout.split())


def test_planning_imports_no_library_but_what_reads_the_configuration():
    """Nor numpy and torch, which every other stage may have. Snakemake itself has imported yaml."""
    dear = DEAR - {"pydantic", "yaml"} | {"numpy", "torch", "requests", "urllib3", "docutils"}
    planning = [
        *STAGES["planning"][0], "parity.base.machine", "parity.base.verdicts",
        "parity.experiment.layers", "parity.experiment.pins", "parity.experiment.paths",
    ]  # fmt: skip
    found = tops(*planning)
    assert {"parity", "pydantic"} <= found
    assert found & dear == set()
    assert {"numpy"} <= tops(*planning, "parity.metrics.estimates") & dear


def test_what_the_list_calls_dear_is_seen(brought):
    """The report's page does bring them: the test above would notice."""
    assert {"pandas", "matplotlib", "seaborn"} <= brought["report"]
