"""An edit runs exactly the jobs again whose results are named by what was edited."""

import os
import re
import shutil
import time

import pytest

from tests.workflow.conftest import ALL_KINDS, copy_project, finish_workflow, make_runner, read_jobs


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


def replace_once(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


DECODERS = "decoders/src/parity_decoders"
EDITS = {  # file, what is replaced in it, and the jobs that are run again, as a pattern of rule and first output
    "an acceptance rule": (f"{DECODERS}/discrete/mtj.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", r"mtj|speed/|report"),
    "a family": ("src/parity/models/continuous/mar.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", r"continuous|mar|report"),
    "a metric": ("src/parity/metrics/fid.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", r"measure_|speed/|report"),
    "a test": ("src/parity/equality/exact.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", r"test_method|report"),
    "the report": ("src/parity/report/templates/style.css", "}", "} ", r"report"),
    "shared code": ("src/parity/experiment/code_digest.py", "ENGINE = 1", "ENGINE = 2", r".*"),
    "a docstring of a decoder": (f"{DECODERS}/discrete/mtj.py", '"""', '"""Said at length. ', None),
    "a decoder's source": (f"{DECODERS}/discrete/mtj.py", 'SOURCE = "', 'SOURCE = "by ', None),
    "a description of a key": ("src/parity/experiment/schema.py", 'description="', 'description="Said. ', None),
    "a message": ("src/parity/models/continuous/mar.py", "as of all released sizes", "as released ones are", None),
    "a module that others import": (f"{DECODERS}/window.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", None),
    "a function of the loop": ("src/parity/decode/loop.py", "\n\n\n", "\n\nEDITED = 1\n\n\n", None),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_runs_the_jobs_again_that_are_named_by_what_it_changes(name, project, snakemake, plan):
    """The code that all share counts by its number alone, which a golden test watches; words count for nothing."""
    path, old, new, again = EDITS[name]
    file = project / path
    text = file.read_text()
    file.write_text(replace_once(text, old, new))
    planned = snakemake("-n", config="every.yaml")
    file.write_text(text)
    jobs = {" ".join(job) for job in read_jobs(planned)}
    assert bool(jobs) is (again is not None)
    assert not [job for job in jobs if not re.search(again, job)]
    if again == r".*":
        assert len([job for job in jobs if job.startswith("decode ")]) == len(
            [job for job in plan if job[0] == "decode"]
        )


def test_new_variants_run_their_own_jobs_and_the_report(project, snakemake, plan):
    """One of each kind; what another experiment made is used."""
    text = ALL_KINDS.replace("experiment: every", "experiment: more")
    for old, new in (
        ("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]"),
        ("assd: [{k: 5}]", "assd: [{k: 5}, {k: 4}]"),
        ("cspd: [{gamma: 4}]", "cspd: [{gamma: 4}, {gamma: 3}]"),
    ):
        text = replace_once(text, old, new)
    (project / "more.yaml").write_text(text)
    planned = read_jobs(snakemake("-n", config="more.yaml"))
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
    "reference images": ("  methods:", "  reference_images: 64\n  methods:"),
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
