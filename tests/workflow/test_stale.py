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
    package = next(package for package in PACKAGES if path.is_relative_to(package))
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


def test_an_edit_runs_exactly_the_jobs_that_import_the_module(project, snakemake, plan):
    """Modules that the same jobs import are one group; of two groups a module is edited. CI sees that a job imports
    nothing else, on jobs that were run."""
    named = {
        output: modules for output, modules in map_rule_modules(project / ".snakemake/metadata").items() if modules
    }
    closures = {output: set(code_digest.list_closure(*named[output])) for _, output in plan if output in named}
    assert len(closures) > 30
    importers = {p: frozenset(o for o, modules in closures.items() if name_module(p) in modules) for p in EDITABLE}
    groups = sorted({outputs: p for p, outputs in importers.items()}.items(), key=lambda group: len(group[0]))
    assert len(groups) > 30
    for expected, path in (groups[len(groups) // 4], groups[-len(groups) // 4]):
        file = project / path.relative_to(ROOT)
        module = name_module(path)
        text = file.read_text()
        file.write_text(text + "\nEDITED = 1\n")
        planned = snakemake("-n", config="every.yaml")
        file.write_text(text)
        assert planned.returncode == 0, planned.stderr
        # Snakemake does not always say of a job with new inputs that its parameters changed too.
        reason_of = read_reasons(planned.stdout + planned.stderr)
        changed = {output for output, reason in reason_of.items() if "Params have changed" in reason}
        assert changed <= expected, module
        assert expected <= set(reason_of), module
        assert all("Input files updated" in reason_of[output] for output in expected - changed), module


def test_new_variants_run_their_own_jobs_and_the_report(project, snakemake, plan):
    """One of each kind; what another experiment made is used, and a comment in a module runs nothing."""
    text = ALL_KINDS.replace("experiment: every", "experiment: more")
    for old, new in (
        ("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]"),
        ("assd: [{k: 5}]", "assd: [{k: 5}, {k: 4}]"),
        ("cspd: [{gamma: 4}]", "cspd: [{gamma: 4}, {gamma: 3}]"),
    ):
        assert old in text
        text = text.replace(old, new)
    (project / "more.yaml").write_text(text)
    file = project / "certify/src/parity_certify/result_rows.py"
    code = file.read_text()
    file.write_text(code.replace('"""', '"""Said at length. ', 1) + "\n# a comment\n")
    planned = read_jobs(snakemake("-n", config="more.yaml"))
    file.write_text(code)
    new = {file.split("/")[4] for rule, file in planned if rule == "decode"}
    assert sorted(name.partition("-")[0] for name in new) == ["assd", "cspd", "sjd"]
    allowed = re.compile("|".join([*new, "^results/more/", "^results/equality/", "^results/speed/"]))
    assert not [job for job in planned if not allowed.search(job[1])], planned
    assert ("report", "results/more/report.html") in planned


def touch_files(folder):
    """Make each file newer, in an order unrelated to which was made of which; return the files."""
    files = sorted((f for f in folder.rglob("*") if f.is_file()), key=lambda f: hash(f.name))
    start = time.time()
    for i, file in enumerate(files):
        os.utime(file, (start + i / 1000,) * 2)
    return files


def test_times_of_files_run_nothing_and_content_does(project, snakemake, plan):
    """Arrays of 5 MB are compared by digest, too. A deleted file of the page is made again, and nothing else."""
    assert len([f for f in touch_files(project) if f.stat().st_size > 4_000_000]) > 10
    page = project / "results/every/summary.csv"
    page.rename(page.with_suffix(".gone"))
    assert {rule for rule, _ in read_jobs(snakemake("-n", config="every.yaml"))} == {"report"}
    page.with_suffix(".gone").rename(page)
    shard = next((project / "results/cells/discrete").rglob("shards/*.npz"))
    with shard.open("r+b") as stream:
        stream.seek(4_900_000)
        stream.write(b"other")
    planned = read_jobs(snakemake("-n", config="every.yaml"))
    with shard.open("r+b") as stream:
        stream.seek(4_900_000)
        stream.write(bytes(5))
    assert {rule for rule, _ in planned} >= {"measure_discrete", "report"}


CHANGES = {  # words of the configuration, and what stands in their place
    "nothing": ("experiment: tiny", "experiment: tiny"),
    "prompts": ("limit: 4", "limit: 6"),
    "a seed": ("experiment: tiny", "experiment: tiny\nseeds: {methods: 7}"),
    "alpha": ("experiment: tiny", "experiment: tiny\nequality: {alpha: 0.01}"),
    "reference pictures": ("  methods:", "  reference_images: 64\n  methods:"),
    "a setting": ("  methods:", "  sampling: {guidance: 3.0}\n  methods:"),
    "a method more": ("ar: [{}]", "ar: [{}]\n    mtj: [{}]"),
}


@pytest.mark.long
def test_without_the_record_of_snakemake_all_is_made_anew_and_said_until_it_is(tmp_path):
    """As after rm -rf .snakemake, or where results were copied without it. With the record nothing is made anew."""
    project = copy_project(tmp_path)
    snakemake = make_runner(project)
    jobs = finish_workflow(project, snakemake, config="tiny.yaml")
    assert not read_jobs(snakemake("-n"))
    shutil.rmtree(project / ".snakemake")
    tiny = (project / "tiny.yaml").read_text()
    for old, new in CHANGES.values():
        (project / "tiny.yaml").write_text(tiny.replace(old, new, 1))
        planned = snakemake("-n")
        assert "made anew, because .snakemake/metadata is empty" in planned.stdout + planned.stderr
        assert {rule for rule, _ in read_jobs(planned)} == {rule for rule, _ in jobs}
    (project / "tiny.yaml").write_text(tiny)
    # A run that ends early leaves a record of few jobs: the others are still to be done.
    assert snakemake("--touch", "--until", "shard_prompts").returncode == 0
    assert {rule for rule, _ in read_jobs(snakemake("-n"))} >= {rule for rule, _ in jobs} - {"shard_prompts"}
