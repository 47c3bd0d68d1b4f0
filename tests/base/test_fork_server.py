"""A command in a copy of the server is as one of its own process: files, folder, environment, exit code, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.base.fork_server import NAME

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
HOLDER = "import os, sys; from parity.base import fork_server as f; f.start(); print(os.environ[f.NAME], flush=True)"
HOLDER += "; sys.stdin.read()"
ASK = "import sys; from parity.base.fork_server import ask; code = ask('probe', sys.argv[1:])"
ASK += "; sys.exit(99 if code is None else code)"
PROBE = """
import atexit, os, sys, time
if sys.argv[1:] == ["words"]:
    atexit.register(print, "handled")
    raise SystemExit("said")
print(os.getcwd(), os.environ["PROBE"], *sys.argv[1:], "torch" in sys.modules, "parity.base.files" in sys.modules)
print("to stderr", file=sys.stderr)
if sys.argv[1:] == ["fail"]:
    raise ValueError("bad luck")
if sys.argv[1:] == ["die"]:
    os.kill(os.getpid(), 9)
if sys.argv[1:] == ["wait"]:
    try:
        print(os.getpid(), flush=True)
        for _ in range(6000):  # a signal that comes just before a sleep is handled after it
            time.sleep(0.1)
    except KeyboardInterrupt:
        raise SystemExit(130)
raise SystemExit(int(sys.argv[1]))
"""


def restore_interrupts():
    """Restore the handler of SIGINT, which a shell ignores in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


HELD = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "preexec_fn": restore_interrupts}


@pytest.fixture(scope="module")
def server():
    """The process that has started a server, and the server's name."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], **HELD) as run:
        yield run, run.stdout.readline().strip()
        run.stdin.close()


@pytest.fixture
def probe(server, tmp_path):
    """A function that runs PROBE with words in a copy of the server; it returns the process that asked."""
    (tmp_path / "probe.py").write_text(PROBE)

    def run(*words, name=server[1]):
        environment = os.environ | {NAME: name, "PROBE": "here"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": restore_interrupts}
        return subprocess.Popen([sys.executable, "-c", ASK, *words], cwd=tmp_path, env=environment, **pipes)

    return run


@pytest.mark.parametrize("code", [0, 3])
def test_a_copy_has_the_files_folder_words_and_code_of_the_one_that_asked(probe, tmp_path, code):
    """The libraries are there before it begins, and nothing of this package, whose edits count at once."""
    with probe(str(code)) as run:
        out, errors = run.communicate()
    assert (run.returncode, out, errors) == (code, f"{tmp_path} here {code} True False\n", "to stderr\n")


def test_handlers_run_at_the_end_and_words_are_an_error(probe):
    with probe("words") as run:
        assert run.communicate() == ("handled\n", "said\n")
    assert run.returncode == 1


def test_an_error_is_a_traceback_and_a_death_is_the_same_death(probe):
    with probe("fail") as run:
        assert "ValueError: bad luck" in run.communicate()[1]
    assert run.returncode == 1
    with probe("die") as run:
        run.communicate()
    assert run.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["", "PYTHON:/nowhere", "/another/python:ADDRESS"])
def test_without_a_server_for_this_python_there_is_no_answer(probe, server, name):
    address = server[1].rpartition(":")[2]
    with probe("0", name=name.replace("PYTHON", sys.executable).replace("ADDRESS", address)) as run:
        run.communicate()
    assert run.returncode == 99


def is_alive(pid):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid):
    """Wait until a process has ended."""
    until = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < until, "still there"
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_signal_to_the_one_that_asked_reaches_the_copy(probe, number, code):
    with probe("wait") as run:
        run.stdout.readline()
        pid = int(run.stdout.readline())
        assert is_alive(pid)
        run.send_signal(number)
        run.communicate()
    wait_for_end(pid)
    assert run.returncode == code


def test_server_and_copies_end_with_the_process_that_started_it(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    with subprocess.Popen([sys.executable, "-c", HOLDER], **HELD) as run:
        name = run.stdout.readline().strip()
        environment = os.environ | {NAME: name, "PROBE": "here"}
        words = [sys.executable, "-c", ASK, "wait"]
        with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as asked:
            asked.stdout.readline()
            pid = int(asked.stdout.readline())
            run.kill()
            assert asked.wait() == 1  # the server ended
        wait_for_end(pid)
    until = time.monotonic() + 60
    while Path(name.rpartition(":")[2]).parent.exists():
        assert time.monotonic() < until, "its folder is still there"
        time.sleep(0.05)
