"""What an edit runs again: exactly the jobs that import what was edited."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.experiment import code_digest
from parity.experiment.module_metadata import PACKAGE
from tests.workflow.conftest import EVERY, ROOT, copied, finish, jobs, runner

STAGES = ("equality", "metrics", "report", "decode", "decoders")
STATISTICS = code_digest.STATISTICS / "parity_certify"
EDITED = sorted(p for stage in STAGES for p in (PACKAGE / stage).rglob("*.py") if p.name != "__init__.py")
EDITED += [STATISTICS / name for name in ("joint_tests.py", "result_rows.py", "verdict.py", "teacher_forced.py")]

PLANS = '''"""The dry run after every edit, a forked process each: snakemake is imported once. Prints JSON."""
import json, os, sys
from pathlib import Path
import yaml
from parity.experiment import checks, layers, paths, code_digest, study
from parity.inputs import readers
from snakemake.cli import get_argument_parser, main

def name(file):
    root = code_digest.ROOT if file.is_relative_to(code_digest.ROOT) else code_digest.STATISTICS
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")

config = checks.load(yaml.safe_load(Path("every.yaml").read_text()))  # what was parsed here is not parsed again
for kind in ("discrete", "anysubset", "continuous"):
    layers.declared(kind), study.metrics(kind)
files = [*code_digest.PACKAGE.rglob("*.py"), *code_digest.STATISTICS.glob("parity_certify/*.py")]
every = [name(file) for file in files]
known = {module: code_digest.own_digest(module) for module in every}
get_argument_parser()
import pandas, smart_open

found = {}
for file in json.load(sys.stdin):
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        text = Path(file).read_text()
        Path(file).write_text(text + "\\nEDITED = 1\\n")
        module, own = name(Path(file).resolve()), code_digest.own_digest.__wrapped__
        code_digest.facts.cache_clear()
        now = known | {module: own(module)}  # only what was edited is read again
        code_digest.own_digest = now.__getitem__
        os.dup2(into, 1), os.dup2(into, 2)
        code = 1
        try:
            main(sys.argv[1:])
        except SystemExit as done:
            code = int(done.code or 0)
        finally:
            Path(file).write_text(text)
            os._exit(code)
    os.close(into)
    with os.fdopen(out) as stream:
        said = stream.read()
    found[file] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """One for all: these tests plan, and put back what they edit."""
    return copied(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def snakemake(project):
    return runner(project)


@pytest.fixture(scope="module")
def plan(project, snakemake):
    """The jobs of a workflow that has run."""
    return finish(project, snakemake)


def reasons(said):
    """Why each job of a dry run runs: {first output: reason}."""
    found, output = {}, ""
    for line in said.splitlines():
        words = line.split()
        output = words[1].rstrip(",") if words[:1] == ["output:"] else output
        if words[:1] == ["reason:"]:
            found[output] = line
    return found


def named(project):
    """By output file the modules that the parameter of its rule names, as Snakemake recorded it."""
    sys.path.insert(0, str(Path(__file__).parents[2] / ".ci"))
    from imports import roots

    return {output: modules for output, modules in roots(project / ".snakemake/metadata").items() if modules}


def module_of(path):
    """The name by which a file of the package is imported."""
    package = PACKAGE if path.is_relative_to(PACKAGE) else STATISTICS
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


@pytest.mark.slow
def test_an_edit_of_a_module_runs_exactly_the_jobs_that_import_it(project, plan):
    """Of modules that the same jobs import one is edited, of a quarter of them; an edit of any changes its digest. That
    a job imports nothing else is seen in CI, on jobs that were run."""
    planned = {output for _, output in plan}
    known = {
        output: set(code_digest.closure(*modules)) for output, modules in named(project).items() if output in planned
    }
    assert len(known) > 40
    importers = {p: frozenset(output for output, modules in known.items() if module_of(p) in modules) for p in EDITED}
    alike = list({jobs: p for p, jobs in importers.items()}.values())
    assert len(alike) > 30
    files = {str(project / p.relative_to(ROOT)): p for p in alike[::4]}
    edited = project / "edited.py"
    for path in EDITED:
        edited.write_text(path.read_text() + "\nEDITED = 1\n")
        assert code_digest.facts(edited)[0] != code_digest.facts(path)[0], path
    arguments = ["--cores", "2", "--resources", "gpu=0", "--configfile", "every.yaml", "-n"]
    done = subprocess.run(
        [sys.executable, "-c", PLANS, *arguments],
        cwd=project, input=json.dumps(list(files)), capture_output=True, text=True, timeout=1500,
        env={**os.environ, "PYTHONPATH": f"{project}/src:{project}/certify/src"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for file, (code, said) in json.loads(done.stdout).items():
        assert code == 0, said
        module = module_of(files[file])
        # Of a job that runs for a new input Snakemake does not always say that its parameters changed too.
        why, expected = reasons(said), importers[files[file]]
        changed = {output for output, reason in why.items() if "Params have changed" in reason}
        assert changed <= expected <= set(why), module
        assert all("Input files updated" in why[output] for output in expected - changed), module


def test_writing_runs_nothing(project, snakemake, plan):
    """A comment and a docstring in a module that every verdict imports."""
    file = project / "certify/src/parity_certify/result_rows.py"
    before = file.read_text()
    file.write_text(before.replace('"""', '"""Said at length. ', 1) + "\n# a comment\n")
    assert not jobs(snakemake("-n", config="every.yaml"))
    file.write_text(before)


def test_one_more_variant_of_any_kind_runs_its_own_jobs_and_the_report(project, snakemake, plan):
    for kind, more in (
        ("discrete", ("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]")),
        ("anysubset", ("assd: [{k: 5}]", "assd: [{k: 5}, {k: 4}]")),
        ("continuous", ("cspd: [{gamma: 4}]", "cspd: [{gamma: 4}, {gamma: 3}]")),
    ):
        (project / "more.yaml").write_text(EVERY.replace(*more))
        now = jobs(snakemake("-n", config="more.yaml"))
        new = {file.split("/")[4] for rule, file in now if rule == "decode"}
        assert len(new) == 1, now
        allowed = re.compile("|".join([*new, "^results/every/", f"^results/equality/{kind}/"]))
        assert not [job for job in now if not allowed.search(job[1])], now
        assert ("report", "results/every/report.html") in now


def aged(folder):
    """Every file newer than it was, in an order that has nothing to do with what was made of what."""
    files = sorted((f for f in folder.rglob("*") if f.is_file()), key=lambda f: hash(f.name))
    now = time.time()
    for i, file in enumerate(files):
        os.utime(file, (now + i / 1000,) * 2)
    return files


def test_touched_files_and_a_copy_run_nothing_and_other_content_does(project, snakemake, plan, tmp_path):
    """Arrays of 5 MB among them: compared by digest. The copy takes Snakemake's records along."""
    assert len([f for f in aged(project) if f.stat().st_size > 4_000_000]) > 10
    assert not jobs(snakemake("-n", config="every.yaml"))
    copy = copied(tmp_path / "copy")
    for folder in ("results", ".snakemake"):
        shutil.copytree(project / folder, copy / folder, copy_function=shutil.copyfile)
    aged(copy)
    again = runner(copy)("-n", config="every.yaml")
    assert not jobs(again) and "Nothing to be done" in again.stdout
    shard = next((copy / "results/cells/discrete").rglob("shards/*.npz"))
    with shard.open("r+b") as stream:
        stream.seek(4_900_000)
        stream.write(b"other")
    assert {rule for rule, _ in jobs(runner(copy)("-n", config="every.yaml"))} >= {"measure_discrete", "report"}
