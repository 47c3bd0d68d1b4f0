"""Generated code in the sandbox: the good program passes, hostile ones fail and leave the machine as it was."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from parity.metrics import sandbox

TESTS = "assert repr(f(1)) == '2'\nassert repr(f(-4)) == '-3'\n"
GOOD = "def f(x):\n    return x + 1\n"

needs_sandbox = pytest.mark.skipif(bool(sandbox.probe()), reason=sandbox.probe() or "works")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Things that a hostile program must not reach: a secret file, a token, a listening socket, a place to write."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.setenv("HF_TOKEN", "t0ken")
    os.chmod(tmp_path, 0o777)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    yield {"secret": secret, "canary": tmp_path / "canary", "port": listener.getsockname()[1], "listener": listener}
    listener.close()


def make_hostile_programs(machine) -> dict[str, str]:
    """Make programs, by what they try, that pass their tests only if a forbidden act succeeds."""
    s, c, port = str(machine["secret"]), str(machine["canary"]), machine["port"]
    solution = "\ndef f(x):\n    return x + 1\n"
    return {
        "loops": "while True:\n    pass\n",
        "forks": "import os\nn = [os.fork() for _ in range(300)]\n" + solution,
        "forks and stays": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(2)\n"
        f"    open({c!r}, 'w').write('x')\n    os._exit(0)\nraise SystemExit(0)\n",
        "reads a secret file": f"assert open({s!r}).read() == 's3cret'" + solution,
        "reads a token": "import os\nassert os.environ['HF_TOKEN'] == 't0ken'" + solution,
        "writes outside": f"open({c!r}, 'w').write('x')" + solution,
        "fills the disk": "f = open('/tmp/big', 'wb')\nfor _ in range(3000):\n    f.write(b'x' * 1_000_000)" + solution,
        "opens a socket": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)" + solution,
        "calls the C library": f"import ctypes\nassert ctypes.CDLL(None).system(b'echo x > {c}') == 0" + solution,
        "starts a shell": f"import subprocess\nsubprocess.run('cat {s} > {c}', shell=True, check=True)" + solution,
        "takes memory": "x = bytearray(3 << 30)" + solution,
        "floods the output": "import sys\nwhile True:\n    sys.stdout.write('x' * 10_000)\n",
        "leaves with success": "import os\nos._exit(0)\n",
        "redefines the check": "def check(*a):\n    pass\nimport builtins\nbuiltins.repr = lambda x: '2'\n"
        "def f(x):\n    return 0\n",
        "kills its neighbours": "import os, signal\nos.kill(-1, signal.SIGKILL)\n" + "raise SystemExit(0)\n",
        "sees other processes": "import os\nassert len([p for p in os.listdir('/proc') if p.isdigit()]) > 5" + solution,
        "equals everything": "class E(int):\n    def __eq__(self, other):\n        return True\n"
        "def f(x):\n    return E(0)\n",
    }


NAMES = tuple(make_hostile_programs({"secret": "", "canary": "", "port": 0}))


@needs_sandbox
def test_a_good_program_passes_and_a_wrong_one_does_not():
    assert sandbox.run(GOOD, TESTS).passed
    wrong = sandbox.run("def f(x):\n    return x\n", TESTS)
    assert not wrong.passed
    assert "AssertionError" in wrong.why
    assert "SyntaxError" in sandbox.run("def f(:", TESTS).why
    assert "NameError" in sandbox.run("", TESTS).why


@needs_sandbox
@pytest.mark.parametrize("name", NAMES)
def test_hostile_programs_are_contained(name, machine):
    outcome = sandbox.run(make_hostile_programs(machine)[name], TESTS, seconds=1.5)
    assert not outcome.passed, outcome
    assert outcome.seconds < 8, outcome
    if name == "forks and stays":
        time.sleep(2)  # longer than the child would wait
    assert not machine["canary"].exists()
    assert machine["secret"].read_text() == "s3cret"
    with pytest.raises(TimeoutError):
        machine["listener"].accept()


def test_forbidden_acts_succeed_without_a_sandbox(machine):
    """Run as plain Python, three of the programs read, write and connect, so the tests above can fail."""
    for name in ("reads a secret file", "writes outside", "opens a socket"):
        subprocess.run([sys.executable, "-c", make_hostile_programs(machine)[name] + TESTS], check=True, timeout=60)
    assert machine["canary"].exists()
    machine["listener"].accept()


@pytest.mark.parametrize(
    ("program", "passes"),
    [(GOOD, True), ("def f(x):\n    return x\n", False), ("x = bytearray(3 << 30)\n" + GOOD, False)],
)
def test_the_launcher_reports_success_by_the_nonce_alone(program, passes):
    """The launcher alone, also on machines without bubblewrap: its limits hold and a failed test prints nothing."""
    job = json.dumps({"program": program, "tests": TESTS, "nonce": "0123"}).encode()
    process = subprocess.run([sys.executable, "-I", "-S", "-c", sandbox.LAUNCHER], input=job, capture_output=True)
    assert (process.stdout == b"0123") == passes


def test_without_bubblewrap_nothing_is_run(monkeypatch):
    sandbox.python.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    try:
        assert "not installed" in sandbox.probe()
        with pytest.raises(RuntimeError, match="not installed"):
            sandbox.run(GOOD, TESTS)
    finally:
        sandbox.python.cache_clear()
