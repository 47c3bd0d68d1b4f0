"""What an edit runs again: exactly the jobs that import what was edited."""

import os
import re
import runpy
import shutil
import time

import pytest

from parity.experiment import code_digest
from parity.experiment.module_metadata import PACKAGE
from tests.workflow.conftest import EVERY, ROOT, copied, finish, jobs, runner

roots = runpy.run_path(str(ROOT / ".ci" / "imports.py"))["roots"]
STAGES = ("equality", "metrics", "report", "decode")
STATISTICS = code_digest.STATISTICS / "parity_certify"
DECODERS = code_digest.DECODERS / "parity_decoders"
PACKAGES = (PACKAGE, STATISTICS, DECODERS)
EDITED = sorted(p for stage in STAGES for p in (PACKAGE / stage).rglob("*.py") if p.name != "__init__.py")
EDITED += sorted(p for p in DECODERS.rglob("*.py") if p.name not in ("__init__.py", "transformers.py"))
EDITED += [STATISTICS / name for name in ("joint_tests.py", "result_rows.py", "verdict.py", "teacher_forced.py")]


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


def module_of(path):
    """The name by which a file of the package is imported."""
    package = next(package for package in PACKAGES if path.is_relative_to(package))
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


@pytest.mark.slow
def test_an_edit_of_a_module_runs_exactly_the_jobs_that_import_it(project, snakemake, plan):
    """Of modules that the same jobs import one is edited, of an eighth of them. That a job imports nothing else is seen
    in CI, on jobs that were run."""
    named = {output: modules for output, modules in roots(project / ".snakemake/metadata").items() if modules}
    known = {output: set(code_digest.list_closure(*named[output])) for _, output in plan if output in named}
    assert len(known) > 30
    importers = {p: frozenset(output for output, modules in known.items() if module_of(p) in modules) for p in EDITED}
    alike = list({jobs: p for p, jobs in importers.items()}.values())
    assert len(alike) > 30
    for path in alike[::8]:
        file, module = project / path.relative_to(ROOT), module_of(path)
        text = file.read_text()
        file.write_text(text + "\nEDITED = 1\n")
        said = snakemake("-n", config="every.yaml")
        file.write_text(text)
        assert said.returncode == 0, said.stderr
        # Of a job that runs for a new input Snakemake does not always say that its parameters changed too.
        why, expected = reasons(said.stdout + said.stderr), importers[path]
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


def test_a_file_of_the_page_that_is_gone_is_made_again(project, snakemake, plan):
    for name in ("records.parquet", "summary.csv", "index.html"):
        file = project / "results/every" / name
        file.rename(file.with_suffix(".gone"))
        assert {rule for rule, _ in jobs(snakemake("-n", config="every.yaml"))} == {"report"}
        file.with_suffix(".gone").rename(file)


def test_another_experiment_plans_all_that_this_one_did_not_make(project, snakemake, plan, tmp_path):
    """As in an empty folder, less what was made."""
    other = "workflow/experiments/sjd-window.yaml"
    alone, planned = jobs(runner(copied(tmp_path / "empty"))("-n", config=other)), jobs(snakemake("-n", config=other))
    made = {output for _, output in plan}
    assert {job for job in alone if job[1] not in made} <= planned < alone
    assert any(rule == "report" for rule, _ in planned)
    assert not any(rule == "checkpoint" and output in made for rule, output in planned)


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
