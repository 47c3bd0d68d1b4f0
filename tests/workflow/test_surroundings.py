"""Odd surroundings: names with every metacharacter, no home, the C locale, files that only the user may read."""

import os
import subprocess
import sys

import pytest

from parity.base import machine
from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from tests.workflow.conftest import ROOT, copied

ODD = 'it\'s a "clone" $(HOME) `x` *?[a-b];&|<>#!~% \\ ünïcödé 名前'


@pytest.mark.slow
def test_a_run_in_odd_surroundings(tmp_path):
    """To a cell's shards, which are of its prompts."""
    project = copied(tmp_path / ODD)
    captions = (ROOT / "prompts/scenes.txt").read_text().splitlines()[:2]
    (project / "prompts" / f"{ODD}.txt").write_text("\n".join(captions))
    one = """
experiment: odd
models: {scenes: {family: llamagen, grid: 8}}
image:
  prompts: {file: FILE, limit: 2}
  methods: {ar: [{}]}
""".replace("FILE", "'prompts/" + ODD.replace("'", "''") + ".txt'")
    (project / f"{ODD}.yaml").write_text(one)
    home = tmp_path / "no home"
    kept = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
    kept |= {"LC_ALL": "C", "HOME": str(home)}
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0"]
    command += ["--configfile", f"{ODD}.yaml", "--until", "decode"]
    done = subprocess.run(command, cwd=project, env=kept, umask=0o077, capture_output=True, timeout=300)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0 and "Traceback" not in said, said
    shards = [f for f in (project / "results/cells").rglob("*.npz") if f.parent.name == "shards"]
    assert len(shards) == 2
    for file in (*(project / "results").rglob("*"), *(project / "logs").rglob("*")):
        if file.is_file() and ".snakemake" not in file.parts:
            assert file.stat().st_mode & 0o077 == 0, file


def test_braces_are_refused_in_one_line(tmp_path):
    """They are Snakemake's wildcards, in the name of a file and of the clone's folder."""
    with pytest.raises(ParityError, match=r"a folder without \{ and \}") as error:
        machine.check_place(tmp_path / "{of}")
    assert "\n" not in str(error.value)
    machine.check_place(tmp_path / ODD)
    with pytest.raises(ConfigError, match=r"prompts.file.*without \{ and \}"):
        checks.load({"image": {"prompts": {"file": "prompts/{of}.txt"}, "methods": {"ar": [{}]}}})
