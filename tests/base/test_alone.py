"""One run at a time in a folder: refused while one lives, taken over from a killed one, left to one elsewhere."""

import json
import subprocess
import sys

import pytest

from parity.base import alone
from parity.base.errors import ParityError
from parity.faults.kinds import APART, READ_ONLY, mounts

RUN = """
import sys
from pathlib import Path
from parity.base import alone
alone.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kept(tmp_path):
    """What a killed Snakemake leaves: locks."""
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.output.lock").write_text("results/a\n")
    return tmp_path / ".snakemake"


@pytest.fixture(autouse=True)
def let_go():
    yield
    while alone.HELD:
        alone.HELD.pop().close()


def run(kept):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(kept)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def locks(kept):
    return list(kept.glob("locks/*"))


def test_a_killed_run_leaves_no_lock_and_a_live_one_is_refused_in_one_line(kept):
    (kept / "run.lock").write_text(json.dumps(alone.here()))
    first = run(kept)
    try:
        assert not locks(kept)
        (kept / "locks").mkdir()
        (kept / "locks/0.output.lock").touch()
        with pytest.raises(ParityError, match=rf"another run works in this folder \(process {first.pid} on") as error:
            alone.hold(kept)
        assert "\n" not in str(error.value)
        alone.hold(kept, planning=True)  # a plan is neither refused nor takes anything away
        assert locks(kept)
    finally:
        first.kill()
        first.wait()
    alone.hold(kept, planning=True)
    assert not locks(kept) and not alone.HELD
    alone.hold(kept)
    assert json.loads((kept / "run.lock").read_text()) == alone.here()


@pytest.mark.parametrize("last", [{}, {"process": 1, "host": "elsewhere", "boot": "another"}])
def test_locks_of_a_run_that_is_not_known_to_be_dead_stay(kept, last):
    """Of another machine, or of a Snakemake that held nothing: Snakemake asks, each time."""
    (kept / "run.lock").write_text(json.dumps(last) if last else "")
    for _ in range(2):
        alone.hold(kept)
        assert locks(kept)
        let_go = alone.HELD.pop()
        let_go.close()


def test_a_container_of_the_same_kernel_and_the_machine_started_anew_are_this_machine():
    now = alone.here()
    assert alone.of_this_machine(now | {"host": "container"}) and alone.of_this_machine(now | {"boot": "before"})
    assert not alone.of_this_machine({"process": 1, "host": "elsewhere", "boot": "another"})


def test_a_folder_that_cannot_be_written_is_one_line_and_planned_all_the_same(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ParityError, match=r"file/kept/run\.lock: Not a directory; allowed: a folder that can be written"
    ):
        alone.hold(tmp_path / "file/kept")
    alone.hold(tmp_path / "file/kept", planning=True)


WRITE = """
import sys
from pathlib import Path
from parity.base import alone
alone.writing(*map(Path, sys.argv[1:]))
"""


@pytest.mark.skipif(not mounts(), reason="this user may not mount")
def test_whether_a_folder_can_be_written_is_tried(tmp_path):
    """Not read from modes: root may write whatever they say. A folder that is not there yet is as the one above it."""
    (tmp_path / "held").mkdir()

    def tried(*before):
        command = [*before, sys.executable, "-c", WRITE, str(tmp_path), str(tmp_path / "held/new/one")]
        return subprocess.run(command, capture_output=True, text=True)

    assert tried().returncode == 0
    done = tried(*APART, "sh", "-c", READ_ONLY, "sh", str(tmp_path / "held"))
    assert done.returncode == 1 and done.stdout == ""
    said = "cannot be written (Read-only file system); allowed: a folder that can be written, such as by --directory"
    assert done.stderr == f"error: {tmp_path}/held/new/one: {said}\n"
    assert [p.name for p in tmp_path.rglob("*")] == ["held"]  # nothing is left
