"""Odd surroundings: names with every metacharacter, no home, the C locale, files that only the user may read, folders
that nobody may write."""

import os
import subprocess
import sys

import pytest

from parity.base import machine
from parity.base.errors import ConfigError, ParityError
from parity.base.forks import NAME
from parity.experiment import checks
from parity.faults.kinds import APART, READ_ONLY, mounts
from parity.faults.place import Ended
from tests.workflow.conftest import copied

ODD = 'it\'s a "clone" $(HOME) `x` *?[a-b];&|<>#!~% \\ ünïcödé 名前'


@pytest.mark.slow
def test_a_run_in_odd_surroundings(tmp_path):
    """To a cell's shards, which are of its prompts."""
    project = copied(tmp_path / ODD)
    (project / "prompts" / f"{ODD}.txt").write_text("a small solid red circle\na large striped blue square\n")
    one = """
experiment: odd
image:
  models: {scenes: {source: embedded, grid: 8}}
  prompts: {file: FILE, limit: 2}
  methods: {ar: [{}]}
""".replace("FILE", "'prompts/" + ODD.replace("'", "''") + ".txt'")
    (project / f"{ODD}.yaml").write_text(one)
    home = tmp_path / "no home"
    kept = {k: v for k, v in os.environ.items() if k not in (NAME, "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy whose prompts are read, and nothing else."""
    project = copied(tmp_path_factory.mktemp("kept"))
    for folder in ("results", "logs"):
        (project / folder).mkdir()
    assert begun(project, "--until", "shard_prompts").code == 0
    return project


def begun(project, *asked, read_only=""):
    """A run of the tiny experiment, one folder of which nobody may write."""
    command = [sys.executable, "-m", "snakemake", "--configfile", "tiny.yaml", "--resources", "gpu=0"]
    command += ["--cores", "1", *asked]
    apart = [*APART, "sh", "-c", READ_ONLY, "sh", read_only] if read_only else []
    environment = os.environ | {NAME: ""}
    done = subprocess.run([*apart, *command], cwd=project, env=environment, capture_output=True, text=True, timeout=300)
    return Ended(done.returncode, done.stdout + done.stderr, 0)


def everything(project):
    return {str(p): p.stat().st_mtime_ns for p in (project / "results").rglob("*") if p.is_file()}


@pytest.mark.skipif(not mounts(), reason="this user may not mount")
@pytest.mark.parametrize(
    ("folder", "more", "says"),
    [
        ("results", (), "results: cannot be written"),  # what is to be made is not there yet
        ("results", ("--forcerun", "shard_prompts"), "results: cannot be written"),  # it is there
        (".snakemake", (), "run.lock: "),
        pytest.param(".snakemake", ("-n",), ".snakemake: cannot be written", marks=pytest.mark.slow),  # a plan is kept
    ],
)
def test_a_folder_that_nobody_may_write_is_one_line_before_any_job(place, folder, more, says):
    before = everything(place)
    done = begun(place, "--until", "checkpoint", *more, read_only=folder)
    assert done.code == 1 and not done.traceback and len(done.told) == 1, done.text
    assert says in done.told[0] and "Read-only file system" in done.told[0] and "; allowed: " in done.told[0]
    assert not [line for line in done.text.splitlines() if "error" in line.lower() or "Exception" in line][1:], (
        done.text
    )
    assert everything(place) == before


@pytest.mark.skipif(not mounts(), reason="this user may not mount")
def test_results_that_nobody_may_write_can_be_planned_and_are_no_matter_where_nothing_is_to_be_done(place):
    planned = begun(place, "--until", "checkpoint", "-n", read_only="results")
    assert planned.code == 0 and not planned.told and "checkpoint" in planned.text, planned.text
    made = next((place / "results/inputs").rglob("*.json")).relative_to(place)
    done = begun(place, str(made), read_only="results")
    assert done.code == 0 and "Nothing to be done" in done.text and not done.told, done.text
