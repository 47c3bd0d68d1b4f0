"""Configuration and names, no rules.

READS    config (config.yaml and what the command line lays over it), the prompt file
DEFINES  EXPERIMENT  the checked configuration
         CELLS       every cell of it, of every kind of model; CELL finds one by (kind, name), BY_KEY by its key
         VARIANTS    methods with their options as they run on enumerable models, by (kind, key)
         LONG        methods at their own options, as they run on long models, by (kind, key)
         RESULT      the folder the experiment ends in

A wrong configuration stops here, before any job, with one line that names the key, the value and what is allowed.
"""

import sys
from pathlib import Path

import snakemake

ROOT, KEPT = Path(workflow.basedir), Path(".snakemake").absolute()
sys.path.insert(0, str(ROOT / "src"))
from parity.base import forks, machine

sys.modules.setdefault("pandas", None)  # Snakemake would import it to ask whether a parameter is a table; none is
machine.keep_bytecode(snakemake.__file__, KEPT / "bytecode")
from parity.base.errors import ParityError
from parity.base.files import canonical
from parity.experiment import cells as parity_cells
from parity.experiment import checks, layers, options, paths, sources, study
from parity.inputs import readers

machine.use_package(ROOT / "src")
sources.remember(KEPT / "sources.json")
warm = forks.prefix().replace("{", "{{").replace("}", "}}")
shell.prefix(f"set -euo pipefail; {warm}")  # jobs start warm
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
LONG = {
    (v.kind, parity_cells.long_key(EXPERIMENT, v)): v
    for v in filter(None, (parity_cells.long_variant(EXPERIMENT, cell) for cell in CELLS))
}
METHODS = [(kind, method) for kind in KINDS for method in getattr(EXPERIMENT, options.KINDS[kind]).methods]
GPU = machine.gpu()
RESULT = f"results/{EXPERIMENT.experiment}"
NAME = r"[a-z0-9][a-z0-9_.-]*/[a-z0-9_]+-[0-9a-f]{8}"  # of a cell: <model>/<method>-<key>
