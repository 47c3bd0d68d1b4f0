"""The workflow as a user runs it: bad input stops it, a killed run resumes, a second run does nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from parity.base.files import read_shard
from parity.experiment import config

ROOT = Path(__file__).parent.parent
PARTS = ("Snakefile", "config.yaml", "profiles", "workflow", "src", "prompts", "envs")
TINY = """
experiment: tiny
prompts: {file: prompts/scenes.txt, limit: 4, shards: 2}
methods:
  ar: [{}]
  sjd: [{window: 16}]
"""


@pytest.fixture
def project(tmp_path):
    """A copy of the project without results."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / part)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def snakemake(project, *arguments, config="tiny.yaml", **more):
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0"]
    command += ["--configfile", config, *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=400, **more)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("batchh: 3", ["batchh = 3", "unknown key"]),
        ("sampling: {temperature: 1e-4}", ["sampling.temperature = '1e-4'", "a number"]),
        ("prompts: {file: prompts/none.txt}", ["prompts.file = 'prompts/none.txt'", "no such file"]),
        ("methods: {ar: [{}], sjd: [{window: 0}]}", ["methods.sjd.0.window = 0", "greater than or equal to 1"]),
        (
            "study: [{title: t, x: window, y: [nfe], paper: Nobody}]",
            ["study.0.paper = 'Nobody'", "a paper of workflow/published"],
        ),
    ],
)
def test_bad_configuration_stops_before_any_job_with_one_line(project, change, parts):
    key = change.split(":")[0]
    lines = [
        line for line in TINY.splitlines() if not line.startswith((f"{key}:", "  ") if key == "methods" else f"{key}:")
    ]
    (project / "bad.yaml").write_text("\n".join([*lines, change]))
    done = snakemake(project, config="bad.yaml")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode != 0 and len(errors) == 1, done.stderr
    assert all(part in errors[0] for part in parts)
    assert not (project / "results").exists() and "Traceback" not in done.stderr


def test_a_wrong_checkpoint_stops_with_one_line(project):
    weights = project / "src/parity/embedded/weights/vq.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = snakemake(project, "--until", "checkpoint")
    assert done.returncode != 0 and "error: models.scenes" in done.stderr and "SHA-256" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_method_has_a_rule_and_no_two_rules_a_name(project):
    """Every decoder at once, planned and not run; the default experiment and `discrete` leave none out."""
    for file in ("config.yaml", "workflow/experiments/discrete.yaml"):
        assert set(yaml.safe_load((ROOT / file).read_text())["methods"]) == set(config.methods())
    done = snakemake(project, "--dry-run", config="config.yaml")
    assert done.returncode == 0, done.stderr
    assert all(f"rule {method}:" in done.stdout + done.stderr for method in config.methods())


def executed(run):
    """Jobs that a run finished."""
    assert run.returncode == 0, run.stderr
    return (run.stdout + run.stderr).count("Finished jobid")


def planned(run):
    """Jobs that a dry run would start, by rule."""
    lines = [line.split() for line in (run.stdout + run.stderr).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def tokens(project):
    files = sorted((project / "results/cells").rglob("*-of-*.npz"))
    return {str(f.relative_to(project)): read_shard(f).tokens for f in files if f.parent.name == "shards"}


@pytest.mark.slow
def test_killed_runs_finish_with_the_same_tokens_and_a_second_run_does_nothing(project, tmp_path_factory):
    """SIGKILL of the whole process group at random moments; then shards again with one shard in place of two."""
    goal = ["--until", "ar", "sjd"]
    calm = snakemake(project, *goal)
    assert calm.returncode == 0, calm.stderr
    wanted = tokens(project)
    assert len(wanted) == 6
    assert executed(snakemake(project, *goal)) == 0

    shutil.rmtree(project / "results")
    shutil.rmtree(project / ".snakemake")
    rng = np.random.default_rng(0)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "2",
        "--resources",
        "gpu=0",
        "--configfile",
        "tiny.yaml",
    ]
    for _ in range(3):
        run = subprocess.Popen(
            [*command, *goal], cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(rng.uniform(6, 20))
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            snakemake(project, "--unlock")
    done = snakemake(project, *goal)
    assert done.returncode == 0, done.stderr
    found = tokens(project)
    assert found.keys() == wanted.keys() and all(np.array_equal(found[k], wanted[k]) for k in wanted)

    (project / "one.yaml").write_text(TINY.replace("shards: 2", "shards: 1"))
    assert snakemake(project, *goal, config="one.yaml").returncode == 0
    for name, whole in tokens(project).items():
        if name.endswith("0-of-1.npz"):
            halves = [wanted[name.replace("0-of-1", f"{k}-of-2")] for k in range(2)]
            assert np.array_equal(whole, np.concatenate(halves))


@pytest.mark.slow
def test_one_more_option_schedules_that_cell_alone_and_taking_it_back_nothing(project):
    goal = ["--until", "ar", "sjd"]
    assert snakemake(project, *goal).returncode == 0
    (project / "more.yaml").write_text(TINY.replace("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]"))
    jobs = planned(snakemake(project, *goal, "-n", config="more.yaml"))
    assert jobs["sjd"] == 2 and "ar" not in jobs  # its two shards
    assert executed(snakemake(project, *goal)) == 0
    source = project / "src/parity/decoders/sjd.py"
    original = source.read_text()
    source.write_text(original + "\n# edited\n")
    jobs = planned(snakemake(project, *goal, "-n"))
    assert jobs["sjd"] == 2 and "ar" not in jobs
    source.write_text(original)
    assert executed(snakemake(project, *goal)) == 0
