"""Make a copy of the project to run the workflow in, and a workflow that believes to be finished."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("Snakefile", "config.yaml", "profiles", "workflow", "src", "certify/src", "decoders/src", "prompts", "envs")
TINY = """
experiment: tiny
models: {scenes: {family: llamagen, grid: 8}}
image:
  prompts: {file: prompts/scenes.txt, limit: 4, shards: 2}
  methods:
    ar: [{}]
    sjd: [{window: 16}]
"""
FEW = """
experiment: few
text:
  methods: {sequential: [{}]}
  tasks: {infilling: [{rows: 4, length: 16, masked: 0.5}]}
equality: {n: 10000, long: 0, swaps: 99}
"""
ALL_KINDS = """
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


def copy_project(folder):
    """Copy the project without results, and write tiny.yaml (one method) and every.yaml (all kinds); return the
    folder."""
    folder.mkdir(exist_ok=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)  # with what Python has compiled
        else:
            shutil.copy(source, folder / name)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "every.yaml").write_text(ALL_KINDS)
    return folder


def make_runner(project):
    """Make a function that runs snakemake in a copy: `run(*arguments, config=FILE)`."""

    def run(*arguments, config="tiny.yaml", cwd=project):
        command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0", "--configfile", config]
        return subprocess.run([*command, *arguments], cwd=cwd, capture_output=True, text=True)

    return run


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


@pytest.fixture
def snakemake(project):
    return make_runner(project)


def read_jobs(run):
    """Read the jobs that a run, or a dry run, was to do as {(rule, first output)}. The run must have succeeded."""
    assert run.returncode == 0, run.stdout + run.stderr
    planned = set()
    rule = ""
    for line in (run.stdout + run.stderr).splitlines():
        words = line.split()
        if words[:1] in (["rule"], ["localrule"]) and words[1].endswith(":"):
            rule = words[1].rstrip(":")
        if words[:1] == ["output:"] and rule:
            planned.add((rule, words[1].rstrip(",")))
            rule = ""
    return planned


def count_jobs(run):
    """Count the jobs that a run finished. The run must have succeeded."""
    assert run.returncode == 0, run.stderr
    return len(re.findall(r"^\[ *\d+/\d+\] ", run.stderr, re.MULTILINE))


def finish_workflow(project, snakemake, config="every.yaml"):
    """Make Snakemake believe that a workflow has run: each output is a file of zeros, or a manifest that names no file.
    Return the jobs it was to do."""
    planned = snakemake("-n", config=config)
    jobs = read_jobs(planned)
    for line in (planned.stdout + planned.stderr).splitlines():
        for output in line.split()[1:] if line.split()[:1] == ["output:"] else ():
            path = project / output.rstrip(",")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, 5_000_000 if path.suffix == ".npz" else 0)  # arrays are as large as those of a real run
            if path.name == "manifest.json":
                path.write_text("{}")
    finished = snakemake("--touch", "--forceall", config=config)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return jobs
