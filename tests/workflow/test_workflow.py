"""The workflow as a user runs it: bad input stops it, one file adds a part."""

import pytest
import yaml

from parity.base import machine
from parity.base.errors import ConfigError
from parity.experiment import module_metadata
from parity.experiment.layers import read_layers
from parity.experiment.study import metrics
from parity.experiment.weights import list_families, read_family
from parity.new.__main__ import fill
from tests.workflow.conftest import ALL_KINDS, TINY, read_jobs


def read_errors(run):
    """Read the lines of a failed run that begin with "error:"; the run must show no traceback."""
    assert run.returncode != 0, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith("error:")]


def test_bad_input_is_one_line_before_any_job(project, snakemake):
    raw = yaml.safe_load(ALL_KINDS)
    raw["image"]["batchh"] = 3
    (project / "bad.yaml").write_text(yaml.safe_dump(raw))
    (line,) = read_errors(snakemake(config="bad.yaml"))
    assert "image.batchh = 3" in line
    assert "unknown key" in line
    assert not (project / "results").exists()


def test_a_second_run_at_once_is_refused_in_one_line(project, snakemake):
    """Whatever it would make, for its jobs and the first one's need not be the same; a plan is printed."""
    with machine.lock_folder(project / ".snakemake"):
        (line,) = read_errors(snakemake("--until", "shard_prompts"))
        assert "another run" in line
        assert not (project / "results/cells").exists()
        assert snakemake("--until", "shard_prompts", "-n").returncode == 0
        plan = snakemake("--", "plan")
    assert plan.returncode == 0
    assert "scenes" in plan.stdout + plan.stderr
    machine.lock_folder(project / ".snakemake").close()


WITHOUT_COMMIT = """
experiment: open
models: {theirs: {family: chameleon, source: hub, repo: o/n, files: {model: ., vq: 'hub:x/y:vq.ckpt'}}}
image: {prompts: {file: prompts/scenes.txt, limit: 4}, methods: {ar: [{}], sjd: [{window: 16}]}}
"""


def test_a_plan_needs_neither_commits_nor_data_and_a_run_does(project, snakemake):
    """The plan lists what is missing; a run stops before its first job, whichever of its files is asked for."""
    (project / "open.yaml").write_text(WITHOUT_COMMIT)
    assert {rule for rule, _ in read_jobs(snakemake("-n", config="open.yaml"))} >= {"checkpoint", "decode", "report"}
    (line,) = read_errors(snakemake("--until", "shard_prompts", config="open.yaml"))
    assert "o/n has no commit yet" in line or "x/y has no commit yet" in line
    assert not list(project.glob("results/*"))
    (project / "open.yaml").write_text(WITHOUT_COMMIT.replace("image: {", "image: {reference: nowhere, "))
    plan = snakemake("--", "plan", config="open.yaml")
    assert plan.returncode == 0
    printed = plan.stdout + plan.stderr
    assert "has no commit yet" in printed
    assert "image.reference = 'nowhere': no such file" in printed
    assert "theirs: " in printed
    (line,) = read_errors(snakemake(config="open.yaml"))
    assert "image.reference = 'nowhere'" in line


def test_until_takes_one_rule_and_runs_what_leads_to_it(project, snakemake):
    (line,) = read_errors(snakemake("--until", "checkpoint", "shard_prompts", "decode"))
    assert "--until checkpoint decode shard_prompts" in line
    assert not (project / "results").exists()
    rules = {rule for rule, _ in read_jobs(snakemake("-n", "--until", "decode"))}
    assert rules == {"checkpoint", "shard_prompts", "captions", "decode"}


def test_command_lines_do_not_grow_with_shards(project, snakemake):
    """Files that differ in their number are one pattern: a thousand names exceed the length of a command line."""
    (project / "many.yaml").write_text(TINY.replace("limit: 4, shards: 2", "limit: 40, shards: 40, jobs: 40"))
    finished = snakemake("-n", "-p", config="many.yaml")
    assert finished.returncode == 0, finished.stderr
    output = (finished.stdout + finished.stderr).splitlines()
    lines = [line for line in output if line.lstrip().startswith(("python", "--"))]
    assert sum("/*-of-40.npz'" in line for line in lines) >= 3
    assert max(map(len, lines)) < 1000


FIGURE = "  study: [{title: t, x: method, y: [letters]}]\n"
LAYER = '''"""Whether there are tokens at all."""

from parity_certify import result_rows as R

ROLES = ("reference", "method")
WHEN = "always"
READS = ("shards",)
WRITES = ()
SETTINGS = ("alpha",)


def rows(cell):
    """One row: never rejected."""
    return [R.make_row("toy", "some", len(cell.shards.tokens), p_value=1.0, **cell.columns)]
'''


def test_a_file_adds_a_decoder_a_rule_a_family_a_metric_or_a_layer(project, snakemake):
    """All five at once. The other methods keep the common rule."""
    source = project / "src/parity"
    (project / "decoders/src/parity_decoders/discrete/toy.py").write_text(fill("discrete.py", name="toy"))
    (project / "workflow/methods/mine.smk").write_text(fill("rule.smk", name="toy", kind="discrete"))
    (source / "models/discrete/other.py").write_text((source / "models/discrete/llamagen.py").read_text())
    (source / "metrics/letters.py").write_text(fill("metric.py", name="letters", kind="discrete"))
    (source / "equality/layers/discrete/toy.py").write_text(LAYER)
    raw = ALL_KINDS.replace("mtj: [{}]", "toy: [{}]").replace("text:\n", f"{FIGURE}text:\n", 1)
    (project / "toy.yaml").write_text(raw.replace("image:", "models: {scenes: {family: other}}\nimage:", 1))
    planned = snakemake("-n", "-p", config="toy.yaml")
    jobs = read_jobs(planned)
    decoded = {(rule, file) for rule, file in jobs if "/shards/" in file}
    assert {rule for rule, file in decoded if "/toy-" in file} == {"decode_toy"}
    assert {rule for rule, file in decoded if "/toy-" not in file} == {"decode"}
    assert any("equality/discrete/toy-" in file for _, file in jobs)
    assert "checkpoint" in {rule for rule, _ in jobs}
    commands = [line for line in planned.stdout.splitlines() if "--layers" in line and '"toy":{"alpha"' in line]
    assert len(commands) == 3  # those of plain decoding and of two methods, not of the control


def test_a_file_that_declares_too_little_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module_metadata, "PACKAGE", tmp_path)
    for file, text, words, read in (
        ("models/discrete/thin.py", "FAMILY = {'files': ()}\n", "FAMILY has no 'also'", lambda: read_family("thin")),
        (
            "metrics/thin.py",
            fill("metric.py", name="thin", kind="discrete").replace(', "none")', ")"),
            "no direction",
            lambda: metrics("discrete"),
        ),
        (
            "equality/layers/discrete/thin.py",
            LAYER.replace("def rows", "def lines"),
            "rows",
            lambda: read_layers("discrete"),
        ),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
        for cached in (list_families, metrics):
            cached.cache_clear()
        with pytest.raises(ConfigError, match=f"{file}.*{words}"):
            read()
    for cached in (list_families, metrics):
        cached.cache_clear()
