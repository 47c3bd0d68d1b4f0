"""Configuration and names, no rules.

READS    config (config.yaml and what the command line lays over it), the prompt file
DEFINES  EXPERIMENT  the checked configuration
         CELLS       every cell of it: specification, key, role, path
         METHODS     the methods it names
         REPORT      the page the experiment ends in

A wrong configuration stops here, before any job, with one line that names the key, the value and what is allowed.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = str(ROOT / "src")  # for the commands that rules run

from parity import config as parity_config
from parity.storage import canonical

try:
    EXPERIMENT = parity_config.load(config)
    PROMPTS = parity_config.read_prompts(EXPERIMENT.prompts)
    CELLS = parity_config.cells(EXPERIMENT, PROMPTS)
except parity_config.ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

METHODS = list(EXPERIMENT.methods)
SHARDS = EXPERIMENT.prompts.shards
SPECS = {cell["key"]: cell["spec"] for cell in CELLS}
GPU = int(Path("/dev/nvidia0").exists())  # asked of the system, for torch is not imported here
PROMPT_SET = f"{parity_config.prompt_digest(PROMPTS)}-{EXPERIMENT.prompts.repeats}x{SHARDS}"
RESULT = f"results/{EXPERIMENT.experiment}"
REPORT = f"{RESULT}/report.html"

# Sources that every sample depends on; a method adds its own module. A change in one of them, and in nothing else, decodes anew.
CORE = [
    f"src/parity/{name}.py"
    for name in (
        "noise",
        "sampling",
        "verification",
        "steps",
        "decode",
        "generate",
        "models/protocol",
        "models/llamagen",
    )
]


def device(wildcards, resources):
    """Where a job with a `gpu` resource runs: `--resources gpu=0` sends it to the CPU."""
    return "cuda" if resources.gpu else "cpu"


def code_digest(files):
    """Of source files' contents."""
    whole = hashlib.sha256()
    for file in files:
        whole.update((ROOT / file).read_bytes())
    return whole.hexdigest()[:12]


def manifest(model):
    """A model's checkpoint manifest."""
    return f"results/checkpoints/{model}-{parity_config.revision(EXPERIMENT.models[model])}/manifest.json"


def cell_files(cell, kind):
    """A cell's files of one kind (shards, images), in order."""
    return [f"results/cells/{cell['cell']}/{kind}/{k}-of-{SHARDS}.npz" for k in range(SHARDS)]


def reference_of(cell):
    """The plain sampling that a cell is compared with: same model, same sampling settings, the reference seed."""
    same = ("model", "sampling", "prompts", "repeats", "dtype")
    return next(
        c
        for c in CELLS
        if c["role"] == "reference"
        and all(c["spec"][k] == cell["spec"][k] for k in same)
    )


def announce(page):
    """Say where the result is."""
    if Path(page).exists():
        print(f"\nReport: {Path(page).resolve()}", file=sys.stderr)
