"""A killed run continues, in odd surroundings: names of every metacharacter, no home, the C locale, files that only the
user may read. What becomes of its tokens and of damaged shards: tests/decode/test_command.py."""

import os
import signal
import subprocess
import sys
import time

import pytest

from parity.base import machine
from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from tests.workflow.conftest import ROOT, copy_project, count_jobs

ODD = 'it\'s a "clone" $(HOME) `x` *?[a-b];&|<>#!~% \\ ünïcödé 名前'
TWO = """
experiment: odd
models: {scenes: {family: llamagen, grid: 8}}
image:
  prompts: {file: FILE, limit: 4, shards: 2}
  methods: {ar: [{}]}
""".replace("FILE", "'prompts/" + ODD.replace("'", "''") + ".txt'")


class Clone:
    """A copy of the project with an experiment of plain decoding alone: two cells of two shards."""

    def __init__(self, folder):
        """Copy the project to a folder of odd name, and prepare an environment without a home."""
        self.folder = copy_project(folder / ODD)
        captions = (ROOT / "prompts/scenes.txt").read_text().splitlines()[:4]
        (self.folder / "prompts" / f"{ODD}.txt").write_text("\n".join(captions))
        (self.folder / f"{ODD}.yaml").write_text(TWO)
        variables = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
        self.environment = variables | {"LC_ALL": "C", "HOME": str(folder / "no home")}

    def start(self):
        """Start snakemake until all is decoded, in odd surroundings, and return its process."""
        command = [sys.executable, "-m", "snakemake", "--until", "decode", "--cores", "2", "--resources", "gpu=0"]
        settings = {"cwd": self.folder, "env": self.environment, "umask": 0o077, "start_new_session": True}
        command += ["--configfile", f"{ODD}.yaml"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **settings)

    def run(self):
        """Run snakemake until all is decoded; return code and errors. A traceback fails the test."""
        process = self.start()
        errors = process.communicate(timeout=500)[1].decode(errors="replace")
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess([], process.returncode, "", errors)

    def list_store(self):
        """List the shards of the store with their inodes, which tell whether one was written again."""
        return {file.name: file.stat().st_ino for file in (self.folder / "results/store").glob("[!.]*.npz")}

    def list_shards(self):
        return sorted((self.folder / "results/cells").rglob("shards/*.npz"))


@pytest.mark.long
def test_a_killed_run_continues(tmp_path):
    """A run is killed with all its jobs once the first shard is there. The same command continues without a lock and
    decodes no shard twice."""
    clone = Clone(tmp_path)
    process = clone.start()
    while process.poll() is None and not clone.list_store():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    stored = clone.list_store()
    assert stored
    assert len(clone.list_shards()) < 4
    assert count_jobs(clone.run()) > 0
    assert stored.items() <= clone.list_store().items()
    assert len(clone.list_shards()) == 4
    for file in (*(clone.folder / "results").rglob("*"), *(clone.folder / "logs").rglob("*")):
        if file.is_file() and ".snakemake" not in file.parts:
            assert file.stat().st_mode & 0o077 == 0, file


def test_braces_are_refused_in_one_line(tmp_path):
    """Braces are Snakemake's wildcards, in the name of a file and of the clone's folder."""
    with pytest.raises(ParityError, match=r"a folder without \{ and \}"):
        machine.check_place(tmp_path / "{of}")
    machine.check_place(tmp_path / ODD)
    with pytest.raises(ConfigError, match=r"prompts.file.*without \{ and \}"):
        checks.load({"image": {"prompts": {"file": "prompts/{of}.txt"}, "methods": {"ar": [{}]}}})
