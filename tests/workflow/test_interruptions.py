"""Interruptions that users meet: a killed run, a damaged file. The next run continues, or says in one line which file
to delete; its tokens are those of an undisturbed run. All in odd surroundings: names of every metacharacter, no home,
the C locale, files that only the user may read."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from parity.base import machine
from parity.base.errors import ConfigError, ParityError
from parity.decode.shard_io import read_shard
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
        """Copy the project to a folder of odd name, with two configurations, and prepare an environment without a
        home."""
        self.folder = copy_project(folder / ODD)
        captions = (ROOT / "prompts/scenes.txt").read_text().splitlines()[:4]
        (self.folder / "prompts" / f"{ODD}.txt").write_text("\n".join(captions))
        (self.folder / f"{ODD}.yaml").write_text(TWO)
        (self.folder / "one.yaml").write_text(TWO.replace("shards: 2", "shards: 1"))
        variables = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
        self.environment = variables | {"LC_ALL": "C", "HOME": str(folder / "no home")}

    def start(self, *goals, config=f"{ODD}.yaml"):
        """Start snakemake in the copy, in odd surroundings, and return its process."""
        command = [sys.executable, "-m", "snakemake", *goals, "--cores", "2", "--resources", "gpu=0"]
        settings = {"cwd": self.folder, "env": self.environment, "umask": 0o077, "start_new_session": True}
        command += ["--configfile", config]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **settings)

    def run(self, *goals, **settings):
        """Run snakemake until all is decoded, or for these goals; return code and errors. A traceback fails the
        test."""
        process = self.start(*(goals or ("--until", "decode")), **settings)
        errors = process.communicate(timeout=500)[1].decode(errors="replace")
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess([], process.returncode, "", errors)

    def list_store(self):
        """List the shards of the store with their inodes, which tell whether one was written again."""
        return {file.name: file.stat().st_ino for file in (self.folder / "results/store").glob("[!.]*.npz")}

    def read_tokens(self, shards):
        """Read the tokens of the two cells, whose shards are so many and are joined."""
        cells = {f.parents[1] for f in self.list_shards() if f.name.endswith(f"-of-{shards}.npz")}
        assert len(cells) == 2
        return [
            np.concatenate([read_shard(c / f"shards/{k}-of-{shards}.npz").tokens for k in range(shards)])
            for c in sorted(cells)
        ]

    def list_shards(self):
        """List the shards in the results folder."""
        return sorted((self.folder / "results/cells").rglob("shards/*.npz"))


@pytest.mark.long
def test_killed_runs_continue_and_damaged_shards_are_named(tmp_path):
    """A run is killed with all its jobs once the first shard is there. The same command continues without a lock,
    decodes no shard twice, and draws the tokens of one undisturbed shard. Then a shard is damaged."""
    clone = Clone(tmp_path)
    process = clone.start("--until", "decode")
    while process.poll() is None and not clone.list_store():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    stored = clone.list_store()
    assert stored
    assert len(clone.list_shards()) < 4
    assert count_jobs(clone.run()) > 0
    assert stored.items() <= clone.list_store().items()
    assert count_jobs(clone.run(config="one.yaml")) > 0
    assert clone.list_store().keys() > stored.keys()
    tokens = clone.read_tokens(2)
    assert all(np.array_equal(two, one) for two, one in zip(tokens, clone.read_tokens(1), strict=True))
    for file in (*(clone.folder / "results").rglob("*"), *(clone.folder / "logs").rglob("*")):
        if file.is_file() and ".snakemake" not in file.parts:
            assert file.stat().st_mode & 0o077 == 0, file

    shard = next(f for f in clone.list_shards() if f.name == "0-of-2.npz")
    data = bytearray(shard.read_bytes())
    data[data.index(b"\0tokens.npy") + 120] ^= 1  # a byte of the tokens: bytes between members mean nothing
    shard.unlink()  # the store still holds the same file
    shard.write_bytes(data)
    finished = clone.run(str(shard.parents[1].relative_to(clone.folder) / "metrics.json"))
    assert finished.returncode != 0
    assert f"{shard.relative_to(clone.folder)}: damaged" in finished.stderr
    assert "delete it and run again" in finished.stderr
    shard.unlink()
    count_jobs(clone.run())
    assert all(np.array_equal(a, b) for a, b in zip(clone.read_tokens(2), tokens, strict=True))


def test_braces_are_refused_in_one_line(tmp_path):
    """Braces are Snakemake's wildcards, in the name of a file and of the clone's folder."""
    with pytest.raises(ParityError, match=r"a folder without \{ and \}") as error:
        machine.check_place(tmp_path / "{of}")
    assert "\n" not in str(error.value)
    machine.check_place(tmp_path / ODD)
    with pytest.raises(ConfigError, match=r"prompts.file.*without \{ and \}"):
        checks.load({"image": {"prompts": {"file": "prompts/{of}.txt"}, "methods": {"ar": [{}]}}})
