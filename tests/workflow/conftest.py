"""A copy of the project to run the workflow in, and a workflow that believes to be finished."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "config.yaml", "profiles", "workflow", "src", "prompts", "envs")
TINY = """
experiment: tiny
image:
  prompts: {file: prompts/scenes.txt, limit: 4, shards: 2}
  methods:
    ar: [{}]
    sjd: [{window: 16}]
"""
EVERY = """
experiment: every
image:
  prompts: {file: prompts/scenes.txt, limit: 4}
  methods: {ar: [{}], sjd: [{window: 16}], mtj: [{}]}
text:
  methods: {sequential: [{}], assd: [{k: 5}]}
  tasks: {infilling: [{rows: 4, length: 16}], last_word: [{rows: 4}]}
continuous:
  methods: {mar: [{}], cspd: [{gamma: 4}]}
  images: 2
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
    (tmp_path / "every.yaml").write_text(EVERY)
    return tmp_path


@pytest.fixture
def snakemake(project):
    """Run snakemake in the copy: `snakemake(*arguments, config=FILE)`."""

    def run(*arguments, config="tiny.yaml", cwd=project):
        command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0"]
        command += ["--configfile", config, *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500)

    return run


def jobs(run):
    """Jobs of a run or a dry run: {(rule, first output)}."""
    assert run.returncode == 0, run.stdout + run.stderr
    found, rule = set(), ""
    for line in (run.stdout + run.stderr).splitlines():
        words = line.split()
        if words[:1] in (["rule"], ["localrule"]) and words[1].endswith(":"):
            rule = words[1].rstrip(":")
        if words[:1] == ["output:"] and rule:
            found.add((rule, words[1].rstrip(",")))
            rule = ""
    return found


@pytest.fixture
def finished(project, snakemake):
    """A workflow whose results are there as far as Snakemake can tell: empty files, their parameters recorded."""

    def finish(config="every.yaml"):
        plan = snakemake("-n", config=config)
        assert plan.returncode == 0, plan.stdout + plan.stderr
        for line in (plan.stdout + plan.stderr).splitlines():
            words = line.replace(",", " ").split()
            if words[:1] == ["output:"]:
                for file in words[1:]:
                    path = project / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
        touched = snakemake("--touch", config=config)
        assert touched.returncode == 0, touched.stdout + touched.stderr
        again = snakemake("-n", config=config)
        assert not jobs(again), jobs(again)
        return jobs(plan)

    return finish
