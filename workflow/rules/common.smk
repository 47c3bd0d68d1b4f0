"""Configuration and names, no rules.

READS    config (config.yaml and what the command line lays over it), the prompt file
DEFINES  EXPERIMENT  the checked configuration
         CELLS       every cell of it, of every kind of model; CELL finds one by (kind, name), BY_KEY by its key
         VARIANTS    methods with their options as they run on enumerable models, by (kind, key)
         RESULT      the folder the experiment ends in

A wrong configuration stops here, before any job, with one line that names the key, the value and what is allowed.
"""

import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))
from parity.base import machine
from parity.base.errors import ParityError
from parity.base.files import canonical
from parity.experiment import cells as parity_cells
from parity.experiment import checks, layers, options, paths, sources, study
from parity.inputs import readers

machine.use_package(ROOT / "src")
PUBLISHED = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "workflow/published").glob("*.csv"))

try:
    EXPERIMENT = checks.load(config)
    checks.check_sources(EXPERIMENT, [ROOT / p for p in PUBLISHED])
    KINDS = parity_cells.kinds(EXPERIMENT)
    LAYERS = {kind: layers.declared(kind) for kind in KINDS}
    PROMPTS = checks.read_prompts(EXPERIMENT.image.prompts) if EXPERIMENT.image else []
    CELLS = parity_cells.cells(EXPERIMENT, PROMPTS)
    TASKS = {t["key"]: t for t in (parity_cells.text_tasks(EXPERIMENT.text) if EXPERIMENT.text else [])}
    for task in TASKS.values():
        readers.check(task["kind"], task["settings"], embedded=not EXPERIMENT.text.model.xlnet)
except ParityError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

CELL = {(cell.kind, cell.name): cell for cell in CELLS}
BY_KEY = {cell.key: cell for cell in CELLS}
VARIANTS = {
    (v.kind, parity_cells.variant_key(EXPERIMENT, v)): v
    for v in filter(None, (parity_cells.variant(EXPERIMENT, cell) for cell in CELLS))
}
METHODS = [(kind, method) for kind in KINDS for method in getattr(EXPERIMENT, options.KINDS[kind]).methods]
GPU = machine.gpu()
RESULT = f"results/{EXPERIMENT.experiment}"
NAME = r"[a-z0-9][a-z0-9_.-]*/[a-z0-9_]+-[0-9a-f]{8}"  # of a cell: <model>/<method>-<key>


def device(wildcards, resources):
    """Where a job with a `gpu` resource runs: `--resources gpu=0` sends it to the CPU."""
    return "cuda" if resources.gpu else "cpu"


def told(*modules):
    """What a parameter says of code: the digest of all that `modules` import, and their names."""
    return " ".join([sources.digest(*modules), *modules])


def code(*modules):
    """A parameter: the code that a job of these modules runs. Wildcards may stand in a name."""
    return lambda w: told(*(module.format(**w) for module in modules))


def cell(wildcards):
    return CELL[wildcards.kind, wildcards.name]


def of_cell(find):
    """An input that is found by a rule's cell."""
    return lambda w: find(cell(w))


def checkpoint(wildcards):
    """The manifest of a cell's model; its revision is in its path, so its age says nothing."""
    return ancient(paths.checkpoint(EXPERIMENT, cell(wildcards)))


def family(kind, model):
    """The modules that load a model: its kind's, and its family."""
    name = EXPERIMENT.image.models[model].family if kind == "discrete" else model
    return f"parity.models.{kind}.load", f"parity.models.{kind}.{name}"


def decoder(kind, method):
    return f"parity.decoders.{kind}.{method}"


def batch(cell):
    """Rows decoded at once; part of the specification where speed at several sizes is compared."""
    return cell.spec["batch"] if "batch" in cell.spec else EXPERIMENT.image.batch


def decoding_code(cell):
    """The modules that a cell's samples depend on, plain decoding's among them, for it is timed beside."""
    kind, method, model = cell.kind, cell.spec["method"], cell.spec["model"]
    plain = decoder(kind, options.plain_method(kind))
    return ["parity.decode.__main__", f"parity.decode.{kind}", decoder(kind, method), plain, *family(kind, model)]


def given(flag, files):
    """`--flag file ...`, or nothing where there is no file."""
    return f"--{flag} {' '.join(files)}" if files else ""


def section_page(section):
    """The page of one section alone; nothing where the experiment has no such section."""
    return f"{RESULT}/{section}/report.html" if getattr(EXPERIMENT, section) else []


def announce(*pages):
    """Say where the result is."""
    for page in pages:
        if Path(page).exists():
            print(f"\nReport: {Path(page).resolve()}", file=sys.stderr)
