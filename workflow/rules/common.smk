"""Configuration and names, no rules.

READS    config (config.yaml and what the command line lays over it), the prompt file
DEFINES  EXPERIMENT  the checked configuration
         CELLS       every cell of it: specification, key, role, path
         METHODS     the methods it names
         REPORT      the page the experiment ends in

A wrong configuration stops here, before any job, with one line that names the key, the value and what is allowed.
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))
from parity import config as parity_config
from parity import host, layout
from parity.storage import canonical

host.use_package(ROOT / "src")

try:
    EXPERIMENT = parity_config.load(config)
    parity_config.check_sources(EXPERIMENT, sorted((ROOT / "workflow/published").glob("*.csv")))
    PROMPTS = parity_config.read_prompts(EXPERIMENT.prompts)
    CELLS = parity_config.cells(EXPERIMENT, PROMPTS)
except parity_config.ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

METHODS = list(EXPERIMENT.methods)
SHARDS = EXPERIMENT.prompts.shards
SPECS = {cell["key"]: cell["spec"] for cell in CELLS}
GPU = host.gpu()
PROMPT_SET = layout.prompt_set(EXPERIMENT, PROMPTS)
RESULT = f"results/{EXPERIMENT.experiment}"
REPORT = f"{RESULT}/report.html"

# Sources that every sample depends on; a method adds its own module. A change in one of them, and in nothing else, decodes anew.
CORE = [
    f"src/parity/{name}.py"
    for name in (
        "noise",
        "sampling",
        "verification",
        "drafting",
        "trees",
        "candidates",
        "steps",
        "decode",
        "generate",
        "models/protocol",
        "models/llamagen",
        "models/eagle",
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


def encoded_prompts(wildcards):
    """Every encoded shard for a rule's model."""
    return [layout.encoded(EXPERIMENT, PROMPTS, wildcards.model, k) for k in range(SHARDS)]


def weights(wildcards):
    if EXPERIMENT.models[wildcards.model].source == "embedded":
        return sorted(str(p.relative_to(ROOT)) for p in parity_config.EMBEDDED.glob("*.safetensors"))
    return []


def reference_file(wildcards):
    return f"results/reference/{PROMPT_SET}-{EXPERIMENT.reference_images}/{wildcards.model}-{parity_config.revision(EXPERIMENT.models[wildcards.model])}.npz"


def announce(page):
    """Say where the result is."""
    if Path(page).exists():
        print(f"\nReport: {Path(page).resolve()}", file=sys.stderr)


def local(path):
    """As seen from the project's folder, so that no file of results names another machine's."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
