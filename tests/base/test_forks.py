"""A job that is forked from the warm process ends as plain Python does; where that is not sure it is plain Python."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.base import forks

SOURCE = Path(forks.__file__).parents[3]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux alone")
JOBS = {
    "said": """
import atexit, os, sys
print(sys.argv[1:], sys.orig_argv[1:], os.getcwd(), sys.path[0], os.environ["SAID"], os.umask(0), __name__)
print(sys.stdin.read(), file=sys.stderr)
atexit.register(print, "at the end")
""",
    "number": "import sys; sys.exit(int(sys.argv[1]))",
    "text": "import sys; sys.exit('one line')",
    "wrong": "1 / 0",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "interrupted": "raise KeyboardInterrupt",
    "where": """
import os, sys
parent = open(f"/proc/{os.getppid()}/cmdline").read()
print("forks/server.py" in parent, "parity.other" in sys.modules, "wave" in sys.modules)
import wave, parity.other
""",
    "other": "",
    "random": "import random; print(random.random())",
    "long": """
import os, sys, time
with open(sys.argv[1], "a") as stream:
    stream.write(f"{os.getpid()} {os.getppid()}\\n")
time.sleep(float(sys.argv[2]))
print("slept")
""",
}


@pytest.fixture
def package(tmp_path):
    """A small package of that name, and a library to be warm with, in place of torch."""
    folder = tmp_path / "src/parity"
    folder.mkdir(parents=True)
    for name, text in JOBS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "__init__.py").write_text("")
    (tmp_path / "src/torch.py").write_text("")
    return tmp_path


@pytest.fixture
def began(package):
    """Start the server as Snakemake would; the environment that its jobs have."""
    started = []

    def begin(**more):
        environment = {k: v for k, v in os.environ.items() if k != forks.NAME} | {"SAID": "hello", **more}
        environment["PYTHONPATH"] = str(package / "src")
        script = f"import os, sys; sys.path.insert(0, {str(SOURCE)!r}); from parity.base import forks; forks.begin()"
        script += "; print(os.environ[forks.NAME], flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        return environment | forks.ONE_THREAD | {forks.NAME: process.stdout.readline().strip()}

    yield begin
    for process in started:
        process.stdin.close()
        assert process.wait(60) in (0, -signal.SIGKILL)


def client(*words):
    return [sys.executable, "-IS", str(forks.CLIENT), "-m", *words]


def ended(environment, package, *words, plain=False):
    """What a job says, and how it ends."""
    command = [sys.executable, "-m", *words] if plain else client(*words)
    done = subprocess.run(
        command, env=environment, cwd=package, capture_output=True, text=True, input="given", timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def is_forked(environment, package):
    return ended(environment, package, "parity.where")[1].split()[0] == "True"


def wait_for(what):
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("did not come true within 30 s")


@pytest.mark.parametrize(
    "words", [("said", "--out", "a b"), ("number", "3"), ("text",), ("killed",), ("said", "x" * 100_000)]
)
def test_a_forked_job_says_and_ends_as_plain_python(began, package, words):
    environment = began()
    assert is_forked(environment, package)
    name, *rest = words
    expected = ended(environment, package, f"parity.{name}", *rest, plain=True)
    assert ended(environment, package, f"parity.{name}", *rest) == expected


def test_errors_leave_their_traceback_and_their_code(began, package):
    environment = began()
    for name, last in (("wrong", "ZeroDivisionError: division by zero"), ("interrupted", "KeyboardInterrupt")):
        plain = ended(environment, package, f"parity.{name}", plain=True)
        code, said, wrong = ended(environment, package, f"parity.{name}")
        assert (code, said) == plain[:2]
        assert wrong.splitlines()[-1] == plain[2].splitlines()[-1] == last


def test_libraries_are_kept_and_modules_of_the_package_are_not(began, package):
    """The library is warm for the second job of its kind; an edited module is never run as it was."""
    environment = began()
    assert ended(environment, package, "parity.where")[1].split() == ["True", "False", "False"]
    assert ended(environment, package, "parity.where")[1].split() == ["True", "False", "True"]
    (package / "src/parity/number.py").write_text("print('edited')")
    assert ended(environment, package, "parity.number", "3") == (0, "edited\n", "")
    drawn = {ended(environment, package, "parity.random")[1] for _ in range(2)}
    assert len(drawn) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"OMP_NUM_THREADS": "2"},
        {"SAID": "other"},
        {forks.NAME: "parity-none"},
        {forks.NAME: "x" * 500},
        {forks.NAME: ""},
    ],
)
def test_what_is_not_surely_the_same_runs_plainly(began, package, change):
    environment = began()
    assert is_forked(environment, package)
    assert not is_forked(environment | change, package)
    assert ended(environment | change, package, "parity.number", "3")[0] == 3


def test_a_library_that_starts_threads_is_not_forked(began, package):
    text = "import threading, time; threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()"
    (package / "src/torch.py").write_text(text)
    assert not is_forked(began(), package)


def test_pandas_does_not_end_all_forking(began, package):
    """Its pyarrow begins a thread where nobody forbids it."""
    (package / "src/torch.py").write_text("import pandas")
    environment = began()
    assert is_forked(environment, package) and is_forked(environment, package)
    count = "import os, pandas; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", count], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1, "pandas begins no thread any more: nothing need be forbidden"


def test_no_server_is_begun_where_none_is_wanted(began, package):
    script = "import os; from parity.base import forks; forks.begin(); print(repr(os.environ[forks.NAME]))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {forks.NAME: ""}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "''\n"


def gone(pid):
    """Ended, or a zombie that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while we read
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_does_not_outlive_its_client(began, package, number):
    log, environment = package / "log", began()
    process = subprocess.Popen(
        client("parity.long", str(log), "600"), env=environment, cwd=package, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    job = int(log.read_text().split()[0])
    assert job != process.pid and not gone(job)
    process.send_signal(number)
    assert process.wait(30) == -number
    wait_for(lambda: gone(job))


def test_a_job_whose_server_is_killed_begins_anew_in_plain_python(began, package):
    log, environment = package / "log", began()
    process = subprocess.Popen(
        client("parity.long", str(log), "1.5"), env=environment, cwd=package, stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    job, server = map(int, log.read_text().split())
    os.kill(server, signal.SIGKILL)
    assert process.communicate(timeout=60)[0] == "slept\n" and process.returncode == 0
    first, second = log.read_text().splitlines()
    assert int(first.split()[0]) == job and int(second.split()[0]) == process.pid
    assert gone(job)


def test_the_server_ends_with_snakemake_but_not_before_its_jobs(began, package):
    log, environment = package / "log", began()
    process = subprocess.Popen(
        client("parity.long", str(log), "2"), env=environment, cwd=package, stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    server = int(log.read_text().split()[1])
    starter = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(starter, signal.SIGKILL)
    assert process.communicate(timeout=60)[0] == "slept\n" and process.returncode == 0
    wait_for(lambda: gone(server))
