"""Interruptions that users meet: a killed run, a damaged file. The next run continues, or says in one line which file
to delete; its tokens are those of a run that nobody disturbed. All of it in odd surroundings: names with every
metacharacter, no home, the C locale, files that only the user may read."""

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
from tests.workflow.conftest import ROOT, copied, executed

ODD = 'it\'s a "clone" $(HOME) `x` *?[a-b];&|<>#!~% \\ ünïcödé 名前'
TWO = """
experiment: odd
models: {scenes: {family: llamagen, grid: 8}}
image:
  prompts: {file: FILE, limit: 4, shards: 2}
  methods: {ar: [{}]}
""".replace("FILE", "'prompts/" + ODD.replace("'", "''") + ".txt'")


class Place:
    """A copy of the project with an experiment of plain decoding alone: two cells of two shards."""

    def __init__(self, folder):
        self.project = copied(folder / ODD)
        captions = (ROOT / "prompts/scenes.txt").read_text().splitlines()[:4]
        (self.project / "prompts" / f"{ODD}.txt").write_text("\n".join(captions))
        (self.project / f"{ODD}.yaml").write_text(TWO)
        (self.project / "one.yaml").write_text(TWO.replace("shards: 2", "shards: 1"))
        kept = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
        self.environment = kept | {"LC_ALL": "C", "HOME": str(folder / "no home")}

    def begin(self, *goals, config=f"{ODD}.yaml"):
        command = [sys.executable, "-m", "snakemake", *goals, "--cores", "2", "--resources", "gpu=0"]
        given = {"cwd": self.project, "env": self.environment, "umask": 0o077, "start_new_session": True}
        command += ["--configfile", config]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **given)

    def run(self, *goals, **given):
        process = self.begin(*(goals or ("--until", "decode")), **given)
        said = process.communicate(timeout=500)[1].decode(errors="replace")
        assert "Traceback" not in said, said
        return subprocess.CompletedProcess([], process.returncode, "", said)

    def store(self):
        return {file.name: file.stat().st_ino for file in (self.project / "results/store").glob("[!.]*.npz")}

    def tokens(self, shards):
        """By cell the tokens of its shards, one behind the other."""
        cells = {f.parents[1] for f in self.shards() if f.name.endswith(f"-of-{shards}.npz")}
        assert len(cells) == 2
        return [
            np.concatenate([read_shard(c / f"shards/{k}-of-{shards}.npz").tokens for k in range(shards)])
            for c in sorted(cells)
        ]

    def shards(self):
        return sorted((self.project / "results/cells").rglob("shards/*.npz"))


@pytest.mark.slow
def test_a_killed_run_continues_and_a_damaged_shard_says_what_to_delete(tmp_path):
    """A run is killed with all its jobs once the first shard is there. The same command continues: no lock is left, no
    shard is decoded twice, the tokens are those of one shard that nobody disturbed. Then a shard is damaged."""
    place = Place(tmp_path)
    process = place.begin("--until", "decode")
    while process.poll() is None and not place.store():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = place.store()
    assert kept and len(place.shards()) < 4
    assert executed(place.run()) > 0
    assert kept.items() <= place.store().items()
    assert executed(place.run(config="one.yaml")) > 0 and place.store().keys() > kept.keys()
    before = place.tokens(2)
    assert all(np.array_equal(two, one) for two, one in zip(before, place.tokens(1), strict=True))
    for file in (*(place.project / "results").rglob("*"), *(place.project / "logs").rglob("*")):
        if file.is_file() and ".snakemake" not in file.parts:
            assert file.stat().st_mode & 0o077 == 0, file

    shard = next(f for f in place.shards() if f.name == "0-of-2.npz")
    data = bytearray(shard.read_bytes())
    data[data.index(b"\0tokens.npy") + 120] ^= 1  # of the tokens themselves: bytes between members mean nothing
    shard.unlink()  # the store holds the same file
    shard.write_bytes(data)
    done = place.run(str(shard.parents[1].relative_to(place.project) / "metrics.json"))
    assert done.returncode != 0
    assert f"{shard.relative_to(place.project)}: damaged" in done.stderr and "delete it and run again" in done.stderr
    shard.unlink()
    executed(place.run())
    assert all(np.array_equal(a, b) for a, b in zip(place.tokens(2), before, strict=True))


def test_braces_are_refused_in_one_line(tmp_path):
    """They are Snakemake's wildcards, in the name of a file and of the clone's folder."""
    with pytest.raises(ParityError, match=r"a folder without \{ and \}") as error:
        machine.check_place(tmp_path / "{of}")
    assert "\n" not in str(error.value)
    machine.check_place(tmp_path / ODD)
    with pytest.raises(ConfigError, match=r"prompts.file.*without \{ and \}"):
        checks.load({"image": {"prompts": {"file": "prompts/{of}.txt"}, "methods": {"ar": [{}]}}})
