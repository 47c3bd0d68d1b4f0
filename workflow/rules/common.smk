"""Configuration and names, no rules.

READS    config (config.yaml and what the command line lays over it), the prompt file
DEFINES  EXPERIMENT  the checked configuration; AS_GIVEN before the check
         CELLS       every cell of it, of every kind of model; CELL finds one by its key
         GROUPS      cells that are compared with one reference, by the path of their speeds
         DRAFTS      decoders of others by the file of the draft network that they train
         TESTED      methods as they run on models whose distribution is known, enumerable and long, by (kind, key)
         RESULT      the folder the experiment ends in
         PAPER_TARGETS  the papers that a target makes all of, by its name
         ANEW        an input of the first jobs if Snakemake's record of what results were made from was lost

A wrong configuration stops here, before any job, with one line that names the key, the value and what is allowed.
"""

import os
import sys
from pathlib import Path

from snakemake.logging import logger

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
MAIN = workflow.modifier.is_main_snakefile()  # not a module of another workflow, whose shell and libraries are its own
IS_FIRST = MAIN and workflow.is_main_process  # not a job that reads the workflow again


def refuse(problem):
    """Stop with one line."""
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(1)


if (ROOT / "src").is_dir():
    sys.path[:0] = [str(ROOT / folder) for folder in ("src", "certify/src", "decoders/src")]
try:
    from parity.base import machine
except ModuleNotFoundError as missing:
    refuse(f"{missing}: install the packages beside Snakemake (pip install FOLDER/certify FOLDER/decoders FOLDER)")

from parity.base import text_files
from parity.base.errors import ParityError
from parity.base.files import dump_canonical
from parity.experiment import cells as parity_cells
from parity.experiment import papers as parity_papers
from parity.experiment import checks, decoder_sources, options, paths, pins, prompt_files, study, weights
from parity.experiment import code_digest, config_overlay, layers, made, schema


def find_shipped(name):
    """Find a file of this workflow: relative to the current folder if it is below it, so that copies of both are alike to
    Snakemake; a cached one where the workflow itself is not on this machine."""
    path = ROOT / name if ROOT.is_dir() else Path(str(workflow.source_path(f"../../{name}")))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def find_workflow_file(name):
    """Find a file of this workflow by its name; return the name itself if the workflow has no such file."""
    return find_shipped(name) if not ROOT.is_dir() or os.path.exists(ROOT / name) else name


try:
    FILES = workflow.overwrite_configfiles if MAIN else []
    DEFAULT = next((name for name in ("config.yaml", "config/config.yaml") if Path(name).exists()), None)
    IS_COMPLETE = config_overlay.is_complete(FILES, {} if MAIN else config)
    if DEFAULT and not IS_COMPLETE:
        config_overlay.read_experiment(Path(DEFAULT))
except ParityError as error:
    refuse(error)

if not IS_COMPLETE:

    configfile: DEFAULT or find_shipped("config.yaml")


machine.use_package(code_digest.ROOT, code_digest.STATISTICS, code_digest.DECODERS, is_main=MAIN)
# named here too: the folder of a remote workflow cannot be listed
papers = sorted(p.stem for p in (ROOT / "workflow/published").glob("*.csv")) or "assd cspd gsd sjd sjd-sv vvs".split()
PUBLISHED = [find_shipped(f"workflow/published/{paper}.csv") for paper in papers]

CATALOGUE = find_shipped("workflow/data.yaml")

UNPINNED = []  # problems that stop a run but no dry run: Snakemake does not say which it is before `onstart`
ABSENT = []  # data that are not here, a line each: `plan` and `fetch` go on without them, and `onstart` stops a run

try:
    machine.check_place(ROOT)
    for folder in (Path("results"), Path("logs"), Path(".snakemake")):
        if folder.is_symlink() and not folder.exists():
            refuse(f"{folder}: {text_files.describe_missing(folder)}; allowed: a folder, or a link to one")
    NOTE = Path("results/made-anew.txt")
    lost = machine.note_lost_record(Path("results"), Path(".snakemake/metadata"), NOTE) if IS_FIRST else ""
    ANEW = [str(NOTE)] if MAIN and NOTE.exists() else []  # an input of the first jobs, once the record was lost
    command_line = workflow.config_settings.config if MAIN else {}
    raw = config_overlay.overlay_config(config, command_line)
    raw = config_overlay.resolve_paths(raw, find_workflow_file)
    AS_GIVEN = raw
    if MAIN and {"plan", "fetch"} & set(sys.argv[1:]):
        raw, ABSENT = config_overlay.replace_absent_data(raw)
    elif MAIN and not raw.get("stand_in") and config_overlay.list_absent(raw, config_overlay.DATA):
        from parity.experiment import catalogue

        fetch_command = " ".join(["snakemake --cores 1 fetch", *["--configfile"] * bool(FILES), *map(str, FILES)])
        catalogue.check(raw, catalogue.read(Path(CATALOGUE)), fetch_command)
    EXPERIMENT, PROMPTS, CELLS, NOTES = checks.make_plan(
        raw,
        find=find_workflow_file,
        pin=pins.make_pin_reader(unpinned=UNPINNED if MAIN else None),
        published=PUBLISHED,
    )
    NOTES[:0] = [lost] * bool(lost)
    KINDS = parity_cells.kinds(EXPERIMENT)
    LAYERS = {kind: layers.read_layers(kind) for kind in KINDS}
    TASKS = {t["key"]: t for t in parity_cells.list_text_tasks(EXPERIMENT)}
    for task in [task for task in TASKS.values() if task["settings"]["data"]]:
        from parity.inputs import readers

        embedded = weights.list_models(EXPERIMENT, "anysubset")[task["model"]].source == "embedded"
        readers.check(task["kind"], task["settings"], embedded=embedded)
        NOTES += readers.describe_unread(task["kind"], task["settings"])
    if any(section.reference for section in (EXPERIMENT.image, EXPERIMENT.continuous) if section):
        from parity.inputs import image_files

        image_files.check_references(EXPERIMENT)
        NOTES += image_files.describe_left_out(EXPERIMENT)
    MANIFESTS = paths.manifests(EXPERIMENT)
    for manifest in [Path(manifest) for manifest in MANIFESTS.values() if MAIN and Path(manifest).is_file()]:
        from parity.base import digests

        digests.read_manifest(manifest)  # of an earlier run, whose files another may have replaced since
except ParityError as error:
    refuse(error)

for note in dict.fromkeys(NOTES) if IS_FIRST else ():
    logger.info(note)

CELL = {cell.key: cell for cell in CELLS}
GROUPS = {paths.speed(EXPERIMENT, group): group for group in parity_cells.group_cells(CELLS)}
TESTED = {
    (c.kind, parity_cells.test_key(EXPERIMENT, *pair)): pair
    for c in CELLS
    for pair in [(parity_cells.variant(EXPERIMENT, c), parity_cells.long_variant(EXPERIMENT, c))]
    if any(pair)
}
DRAFTS = {c.spec["own_draft"]: c.spec["method"] for c in CELLS if "own_draft" in c.spec}
RESULT = f"results/{EXPERIMENT.experiment}"
PAPER_TARGETS = {key: [key] for key, _ in parity_papers.PAPERS.values()}
PAPER_TARGETS["papers"] = list(PAPER_TARGETS)
