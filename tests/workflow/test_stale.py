"""An edit runs exactly the jobs again that import what was edited."""

import os
import re
import runpy
import shutil
import time

import pytest

from parity.experiment import code_digest
from parity.experiment.module_metadata import PACKAGE
from tests.workflow.conftest import ALL_KINDS, ROOT, copy_project, finish_workflow, make_runner, read_jobs

map_rule_modules = runpy.run_path(str(ROOT / ".ci" / "imports.py"))["map_rule_modules"]
STAGES = ("equality", "metrics", "report", "decode")
STATISTICS = code_digest.STATISTICS / "parity_certify"
DECODERS = code_digest.DECODERS / "parity_decoders"
PACKAGES = (PACKAGE, STATISTICS, DECODERS)
EDITABLE = sorted(p for stage in STAGES for p in (PACKAGE / stage).rglob("*.py") if p.name != "__init__.py")
EDITABLE += sorted(p for p in DECODERS.rglob("*.py") if p.name not in ("__init__.py", "transformers.py"))
EDITABLE += [STATISTICS / name for name in ("joint_tests.py", "result_rows.py", "verdict.py", "teacher_forced.py")]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project for all tests, which plan, and restore what they edit."""
    return copy_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def snakemake(project):
    """A function that runs snakemake in the project's copy."""
    return make_runner(project)


@pytest.fixture(scope="module")
def plan(project, snakemake):
    """The jobs of a workflow that, as Snakemake believes, has run."""
    return finish_workflow(project, snakemake)


def read_reasons(text):
    """Read from a dry run's output why each job would run: the line with its reasons, by the job's first output."""
    reason_of = {}
    output = ""
    for line in text.splitlines():
        words = line.split()
        output = words[1].rstrip(",") if words[:1] == ["output:"] else output
        if words[:1] == ["reason:"]:
            reason_of[output] = line
    return reason_of


def name_module(path):
    """Return the name by which a file of the package is imported."""
    package = next(package for package in PACKAGES if path.is_relative_to(package))
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


@pytest.mark.long
def test_an_edit_runs_exactly_the_jobs_that_import_the_module(project, snakemake, plan):
    """Modules that the same jobs import are one group; of an eighth of the groups a module is edited. CI sees that a
    job imports nothing else, on jobs that were run."""
    named = {
        output: modules for output, modules in map_rule_modules(project / ".snakemake/metadata").items() if modules
    }
    closures = {output: set(code_digest.list_closure(*named[output])) for _, output in plan if output in named}
    assert len(closures) > 30
    importers = {p: frozenset(o for o, modules in closures.items() if name_module(p) in modules) for p in EDITABLE}
    groups = list({outputs: p for p, outputs in importers.items()}.values())
    assert len(groups) > 30
    for path in groups[::8]:
        file = project / path.relative_to(ROOT)
        module = name_module(path)
        text = file.read_text()
        file.write_text(text + "\nEDITED = 1\n")
        planned = snakemake("-n", config="every.yaml")
        file.write_text(text)
        assert planned.returncode == 0, planned.stderr
        # Snakemake does not always say of a job with new inputs that its parameters changed too.
        reason_of = read_reasons(planned.stdout + planned.stderr)
        expected = importers[path]
        changed = {output for output, reason in reason_of.items() if "Params have changed" in reason}
        assert changed <= expected, module
        assert expected <= set(reason_of), module
        assert all("Input files updated" in reason_of[output] for output in expected - changed), module


def test_comments_and_docstrings_run_nothing(project, snakemake, plan):
    """In a module that every verdict imports."""
    file = project / "certify/src/parity_certify/result_rows.py"
    text = file.read_text()
    file.write_text(text.replace('"""', '"""Said at length. ', 1) + "\n# a comment\n")
    assert not read_jobs(snakemake("-n", config="every.yaml"))
    file.write_text(text)


def test_a_new_variant_runs_its_own_jobs_and_the_report(project, snakemake, plan):
    for kind, change in (
        ("discrete", ("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]")),
        ("anysubset", ("assd: [{k: 5}]", "assd: [{k: 5}, {k: 4}]")),
        ("continuous", ("cspd: [{gamma: 4}]", "cspd: [{gamma: 4}, {gamma: 3}]")),
    ):
        (project / "more.yaml").write_text(ALL_KINDS.replace(*change))
        planned = read_jobs(snakemake("-n", config="more.yaml"))
        new = {file.split("/")[4] for rule, file in planned if rule == "decode"}
        assert len(new) == 1, planned
        allowed = re.compile("|".join([*new, "^results/every/", f"^results/equality/{kind}/"]))
        assert not [job for job in planned if not allowed.search(job[1])], planned
        assert ("report", "results/every/report.html") in planned


def test_a_deleted_file_of_the_page_is_made_again(project, snakemake, plan):
    for name in ("records.parquet", "summary.csv", "index.html"):
        file = project / "results/every" / name
        file.rename(file.with_suffix(".gone"))
        assert {rule for rule, _ in read_jobs(snakemake("-n", config="every.yaml"))} == {"report"}
        file.with_suffix(".gone").rename(file)


def test_an_experiment_uses_what_another_made(project, snakemake, plan, tmp_path):
    """It plans what it would in an empty folder, less what exists."""
    config = "workflow/experiments/sjd-window.yaml"
    in_empty_folder = read_jobs(make_runner(copy_project(tmp_path / "empty"))("-n", config=config))
    planned = read_jobs(snakemake("-n", config=config))
    existing = {output for _, output in plan}
    assert {job for job in in_empty_folder if job[1] not in existing} <= planned < in_empty_folder
    assert any(rule == "report" for rule, _ in planned)
    assert not any(rule == "checkpoint" and output in existing for rule, output in planned)


def touch_files(folder):
    """Make each file newer, in an order unrelated to which was made of which; return the files."""
    files = sorted((f for f in folder.rglob("*") if f.is_file()), key=lambda f: hash(f.name))
    start = time.time()
    for i, file in enumerate(files):
        os.utime(file, (start + i / 1000,) * 2)
    return files


def test_times_of_files_run_nothing_and_content_does(project, snakemake, plan, tmp_path):
    """Arrays of 5 MB are compared by digest, too. A copy with Snakemake's records also runs nothing."""
    assert len([f for f in touch_files(project) if f.stat().st_size > 4_000_000]) > 10
    assert not read_jobs(snakemake("-n", config="every.yaml"))
    copy = copy_project(tmp_path / "copy")
    for folder in ("results", ".snakemake"):
        shutil.copytree(project / folder, copy / folder, copy_function=shutil.copyfile)
    touch_files(copy)
    of_copy = make_runner(copy)("-n", config="every.yaml")
    assert not read_jobs(of_copy)
    assert "Nothing to be done" in of_copy.stdout
    shard = next((copy / "results/cells/discrete").rglob("shards/*.npz"))
    with shard.open("r+b") as stream:
        stream.seek(4_900_000)
        stream.write(b"other")
    planned = read_jobs(make_runner(copy)("-n", config="every.yaml"))
    assert {rule for rule, _ in planned} >= {"measure_discrete", "report"}
