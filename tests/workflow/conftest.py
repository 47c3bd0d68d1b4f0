"""A copy of the project to run the workflow in, and a workflow that believes to be finished."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "config.yaml", "profiles", "workflow", "src", "certify/src", "decoders/src", "prompts", "envs")
TINY = """
experiment: tiny
models: {scenes: {family: llamagen, grid: 8}}
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


def copied(folder):
    """A copy of the project without results."""
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "every.yaml").write_text(EVERY)
    return folder


@cache
def forker():
    """The process that runs are forked from, which ends with this one."""
    command = [sys.executable, Path(__file__).with_name("forked.py")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)


def runner(project):
    """Runs snakemake in a copy: `run(*arguments, config=FILE)`."""

    def run(*arguments, config="tiny.yaml", cwd=project):
        given = ["--cores", "2", "--resources", "gpu=0", "--configfile", config, *arguments]
        asked = {"arguments": given, "cwd": str(cwd), "environment": dict(os.environ), "timeout": 500}
        with NamedTemporaryFile("r") as out, NamedTemporaryFile("r") as err:
            process = forker()
            print(json.dumps(asked | {"stdout": out.name, "stderr": err.name}), file=process.stdin, flush=True)
            code = int(process.stdout.readline())
            return subprocess.CompletedProcess(given, code, out.read(), err.read())

    return run


@pytest.fixture
def project(tmp_path):
    return copied(tmp_path)


@pytest.fixture
def snakemake(project):
    return runner(project)


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


def executed(run):
    """Jobs that a run finished."""
    assert run.returncode == 0, run.stderr
    return len(re.findall(r"^\[ *\d+/\d+\] ", run.stderr, re.MULTILINE))


STUB = '''"""Every command of the package leaves empty files where its results would be, and ends."""
import json, os, sys
from glob import glob
from pathlib import Path

CELL = ["spec.json", "metrics.json", "features.npz", "records.parquet", "equality.json", "laws.npz"]
PAGE = ["index.html", "report.html", "records.parquet"]
PAGE += [f"{name}.csv" for name in ("summary", "equality", "published")]

words = sys.orig_argv
if "-m" in words[:3] and (command := words[words.index("-m") + 1]).startswith("parity."):
    given = dict(zip(words, words[1:]))
    out = Path(given.get("--out", ""))
    files = [out]
    if command == "parity.report":
        files = [out / name for name in PAGE]
    elif command == "parity.measure":
        cell = Path(given["--cell"])
        pictures = [] if given["--kind"] == "anysubset" else glob(given["--shards"])
        laws = [] if given["--kind"] == "continuous" else CELL[-1:]
        files = [cell / name for name in CELL[:-1] + laws] + [cell / "pictures" / Path(p).name for p in pictures]
    elif "drafted-trees" in words:
        files = [Path(word) for word in words[words.index("--out") + 1 :] if not word.startswith(">")]
    elif "prompts" in words:
        files = [out / f"{k}.json" for k in range(json.loads(given["--spec"])["shards"])]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, 5_000_000 if path.suffix == ".npz" else 0)  # as large as arrays of a real run
    os._exit(0)
'''


def finish(project, snakemake, config="every.yaml"):
    """The jobs of a workflow that has run, as far as Snakemake can tell: every command leaves empty files and ends."""
    stub = project / "src/sitecustomize.py"
    stub.write_text(STUB)
    plan = jobs(snakemake("-n", config=config))
    done = snakemake(config=config)
    assert done.returncode == 0, done.stdout + done.stderr
    stub.unlink()
    again = snakemake("-n", config=config)
    assert not jobs(again), jobs(again)
    return plan
