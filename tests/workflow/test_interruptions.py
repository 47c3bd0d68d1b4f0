"""Interruptions that users meet: a killed run, a damaged file. The next run continues, or says in one line
which file to delete; its tokens are those of a run that nobody disturbed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from parity.decode.shard_io import read_shard
from tests.workflow.conftest import TINY, copied

COMMAND = (sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0", "--configfile", "two.yaml")
GOAL = ("--until", "decode")


def begin(folder):
    """A copy of the project with an experiment of plain decoding alone: two cells of two shards."""
    project = copied(folder)
    (project / "two.yaml").write_text(TINY.replace("    sjd: [{window: 16}]\n", ""))
    return project


def run(project):
    return subprocess.run([*COMMAND, *GOAL], cwd=project, capture_output=True, text=True, timeout=500)


def shards(project):
    return sorted((project / "results/cells").rglob("shards/*.npz"))


def tokens(project):
    return {str(file.relative_to(project)): read_shard(file).tokens for file in shards(project)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run."""
    project = begin(tmp_path_factory.mktemp("undisturbed"))
    done = run(project)
    assert done.returncode == 0 and len(shards(project)) == 4, done.stdout + done.stderr
    return project


def same(project, other):
    found, expected = tokens(project), tokens(other)
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_a_killed_run_continues_by_the_same_command(undisturbed, tmp_path):
    """Snakemake and its jobs are killed once the first shard is there: no lock is left, no shard is decoded twice."""
    project = begin(tmp_path)
    process = subprocess.Popen([*COMMAND, *GOAL], cwd=project, start_new_session=True, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((project / "results/store").glob("[!.]*.npz")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file.name: file.stat().st_ino for file in (project / "results/store").glob("[!.]*.npz")}
    assert kept and len(shards(project)) < 4
    done = run(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert same(project, undisturbed)
    assert all((project / "results/store" / name).stat().st_ino == number for name, number in kept.items())


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: flip(data)], ids=["cut", "flip"])
def test_a_damaged_shard_is_one_line_that_says_what_to_delete(undisturbed, tmp_path, damage):
    project = begin(tmp_path)
    subprocess.run(["cp", "-a", f"{undisturbed}/results", f"{undisturbed}/.snakemake", project], check=True)
    shard = shards(project)[0]
    data = shard.read_bytes()
    shard.unlink()  # the store holds the same file
    shard.write_bytes(damage(data))
    wanted = str(shard.parents[1].relative_to(project) / "metrics.json")
    command = [*COMMAND[:3], wanted, *COMMAND[3:]]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500)
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    assert f"{shard.relative_to(project)}: damaged" in done.stderr and "delete it and run again" in done.stderr
    shard.unlink()
    assert run(project).returncode == 0
    assert same(project, undisturbed)


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
