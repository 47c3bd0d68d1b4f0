"""A run: the lock of its folder, what stops it before its first job, what it says at its start and end. No rules.

READS   results/code.json, the code of the last run, of which every change is named
WRITES  the same, at a run's start
"""

import shutil
import time

BEGAN = time.time()


def list_used_code():
    """List by module what is made again after it has changed."""
    used = {}
    for c in CELLS:
        family = weights.list_models(EXPERIMENT, c.kind)[c.spec["model"]].family
        used[name_module(c.kind, c.spec["method"])] = "its cells are decoded, measured, tested and timed; all of it is"
        used[f"parity.models.{c.kind}.{family}"] = "everything of its models is"
        used |= {module: f"every row of a {c.kind} model is" for module in list_measuring_modules(c)}
    return used


USED_CODE, CODE_RECORD = list_used_code(), Path("results/code.json")
for change in code_digest.describe_changes(USED_CODE, CODE_RECORD) if IS_FIRST else ():
    logger.info(change)


def begin_run():
    """Lock the folder until this process ends. Stop if data are absent, a network has no commit, or --until names several
    rules, of which Snakemake starts no named one that follows another. `plan` and `fetch` need no lock, data or commits;
    the runs that a paper's target starts have a lock of their own."""
    global RUN_LOCK
    if len(until := sorted(workflow.dag_settings.until)) > 1:
        refuse(f"--until {' '.join(until)}: allowed: one name, the last of them; what leads to it is run too")
    targets = set(workflow.dag_settings.targets)
    if targets and targets <= {"plan", "fetch"}:
        return
    if workflow.local_exec and not machine.gpu():
        from parity.base import fork_server

        fork_server.start()
    if targets & set(PAPER_TARGETS):
        check_paper_run(targets)
        return
    if problems := [*ABSENT, *UNPINNED]:
        refuse(problems[0])
    try:
        RUN_LOCK = machine.lock_folder(Path(".snakemake").absolute())
        code_digest.record_code(USED_CODE, CODE_RECORD)
    except ParityError as error:
        refuse(error)


def check_paper_run(targets):
    """Stop if a paper's target comes with what its runs cannot have: other targets, an experiment file, or one name for
    the results of all."""
    if others := sorted(targets - set(PAPER_TARGETS)):
        refuse(f"{others[0]}: not together with {min(targets & set(PAPER_TARGETS))}; allowed: a command of its own")
    if FILES:
        refuse(f"--configfile {FILES[0]}: a paper's target takes that paper's files; allowed: --config KEY=VALUE")
    if "experiment" in command_line:
        refuse(f"--config experiment={command_line['experiment']}: one name for several; allowed: other keys")


def announce(*pages):
    """Print what this run made, last of all: the verdicts, and where the pages are."""
    from parity.base import verdict_table

    written = [Path(page).resolve() for page in list_existing(*pages) if Path(page).stat().st_mtime >= BEGAN]
    summary = written[0].with_name("summary.csv") if written else Path()
    table = [verdict_table.table(summary, shutil.get_terminal_size((120, 24)).columns)] if summary.is_file() else []
    for text in [*table, *(f"Report: {page}" for page in written)]:
        logger.info(text, extra={"result": True})


onstart:
    if MAIN and workflow.is_main_process:
        begin_run()


onsuccess:
    announce(f"{RESULT}/report.html", *(f"{RESULT}/{section}/report.html" for section in options.KINDS.values()))
