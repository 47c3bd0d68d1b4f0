"""The workflow as a user runs it: bad input stops it, a killed run resumes, a second run does nothing."""

import re

import numpy as np
import pytest
import yaml

from parity.base import machine
from parity.decode.shard_io import read_shard
from parity.experiment.options import KINDS, methods
from tests.workflow.conftest import EVERY, ROOT, TINY, jobs


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"batchh": 3}, ["image.batchh = 3", "unknown key"]),
        ({"sampling": {"temperature": "1e-4"}}, ["image.sampling.temperature = '1e-4'", "a number"]),
        ({"prompts": {"file": "prompts/none.txt"}}, ["image.prompts.file = 'prompts/none.txt'", "no such file"]),
        (
            {"methods": {"ar": [{}], "sjd": [{"window": 0}]}},
            ["image.methods.sjd.0.window = 0", "greater than or equal"],
        ),
        (
            {"study": [{"title": "t", "x": "window", "y": ["nfe"], "paper": "Nobody"}]},
            ["image.study.0.paper = 'Nobody'", "a paper of workflow/published"],
        ),
    ],
)
def test_bad_configuration_stops_before_any_job_with_one_line(project, snakemake, change, parts):
    raw = yaml.safe_load(TINY)
    raw["image"] |= change
    (project / "bad.yaml").write_text(yaml.safe_dump(raw))
    done = snakemake(config="bad.yaml")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode != 0 and len(errors) == 1, done.stderr
    assert all(part in errors[0] for part in parts)
    assert not (project / "results").exists() and "Traceback" not in done.stderr


def test_text_data_that_cannot_be_read_stops_before_any_job(project, snakemake):
    raw = yaml.safe_load(EVERY)
    (project / "words.txt").write_text("zebra xylophone quixotic\n")
    raw["text"]["tasks"]["last_word"] = [{"rows": 2, "data": "words.txt"}]
    (project / "bad.yaml").write_text(yaml.safe_dump(raw))
    done = snakemake(config="bad.yaml")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode != 0 and len(errors) == 1 and "'zebra'" in errors[0], done.stderr


def test_a_wrong_checkpoint_stops_with_one_line(project, snakemake):
    weights = project / "src/parity/embedded/weights/discrete/vq.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = snakemake("--until", "checkpoint")
    assert done.returncode != 0 and "models.scenes" in done.stderr and "SHA-256" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_default_experiment_leaves_no_discrete_method_out(snakemake):
    """Every decoder at once, planned and not run."""
    given = yaml.safe_load((ROOT / "config.yaml").read_text())
    assert set(given["image"]["methods"]) == set(methods("discrete"))
    planned = {file for rule, file in jobs(snakemake("--dry-run", config="config.yaml")) if rule == "decode"}
    named = {(kind, m) for kind, section in KINDS.items() for m in given[section]["methods"]}
    assert {(file.split("/")[2], file.split("/")[4].rpartition("-")[0]) for file in planned} == named


def executed(run):
    """Jobs that a run finished."""
    assert run.returncode == 0, run.stderr
    return len(re.findall(r"^\[ *\d+/\d+\] ", run.stderr, re.MULTILINE))


def tokens(project):
    files = sorted((project / "results/cells").rglob("shards/*.npz"))
    return {str(f.relative_to(project)): read_shard(f).tokens for f in files}


GOAL = ["--until", "decode"]


@pytest.mark.slow
def test_shards_change_no_token_and_a_second_run_does_nothing(project, snakemake):
    """Two shards, then the same in one."""
    executed(snakemake(*GOAL))
    halves = tokens(project)
    assert len(halves) == 6
    assert executed(snakemake(*GOAL)) == 0

    (project / "one.yaml").write_text(TINY.replace("shards: 2", "shards: 1"))
    assert executed(snakemake(*GOAL, config="one.yaml")) > 0
    wholes = {name: found for name, found in tokens(project).items() if name.endswith("0-of-1.npz")}
    assert len(wholes) == 3
    for name, whole in wholes.items():
        of_two = [halves[name.replace("0-of-1", f"{k}-of-2")] for k in range(2)]
        assert np.array_equal(whole, np.concatenate(of_two))


def test_a_second_run_at_once_is_refused_in_one_line(project, snakemake):
    """Whatever it would make, for its jobs and the first one's need not be the same; a plan is not refused."""
    first = machine.hold(project / ".snakemake")
    second = snakemake("--until", "shard_prompts")
    errors = [line for line in second.stderr.splitlines() if line.startswith("error:")]
    assert second.returncode == 1 and len(errors) == 1 and "another run" in errors[0], second.stderr
    assert "Traceback" not in second.stderr and not (project / "results/cells").exists()
    assert snakemake("--until", "shard_prompts", "-n").returncode == 0
    first.close()
    assert executed(snakemake("--until", "shard_prompts")) > 0


def test_command_lines_do_not_grow_with_shards(project, snakemake):
    """Files that differ in their number are one name: a thousand would be more than a command line holds."""
    (project / "many.yaml").write_text(TINY.replace("limit: 4, shards: 2", "limit: 120, shards: 120, jobs: 120"))
    done = snakemake("-n", "-p", config="many.yaml")
    assert done.returncode == 0, done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.lstrip().startswith(("python", "--"))]
    assert sum("/*-of-120.npz'" in line for line in lines) >= 3 and max(map(len, lines)) < 1000
