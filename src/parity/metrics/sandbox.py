"""Run generated Python in a sandbox: bubblewrap (no network, no files but the interpreter's, its own processes) and
resource limits.

    probe() -> ""                    or the reason why it cannot work here
    run(program, tests) -> Outcome   passed only if every test ran to its end

The program sees the interpreter, an empty /tmp, and nothing of the user's. It passes if a secret number comes back
after the last test, so a program that leaves early or redefines the check fails. Tests see the program's functions
alone, under builtins saved before it ran. A program that searches the interpreter's frames could find the number: it
would cheat the score, not reach the machine."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SECONDS, MEMORY, FILE, PROCESSES = 5.0, 1 << 30, 10 << 20, 64
NOBODY = 65534

LAUNCHER = f"""
import builtins, json, os, resource, sys
job = json.load(sys.stdin)
limits = {{"AS": {MEMORY}, "CPU": {int(SECONDS)}, "FSIZE": {FILE}, "NOFILE": 64, "NPROC": {PROCESSES}, "CORE": 0}}
for name, most in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
def main(job, write, saved):
    scope = {{"__name__": "program"}}
    exec(compile(job["program"], "program", "exec"), scope)
    own = {{k: v for k, v in scope.items() if not k.startswith("__") and k not in saved}}
    exec(compile(job["tests"], "tests", "exec"), {{**own, "__builtins__": saved}})
    write(1, job["nonce"].encode())
main(job, os.write, dict(vars(builtins)))
"""


@dataclass(frozen=True)
class Outcome:
    passed: bool
    why: str  # the last line of what went wrong; "" if the program passed
    seconds: float


def command(folder: str, python: str) -> list[str]:
    """Make the command of bubblewrap that runs LAUNCHER with the executable `python`, whose `folder` it may read."""
    isolate = (
        f"--unshare-all --unshare-user --uid {NOBODY} --gid {NOBODY} --cap-drop ALL --die-with-parent --new-session"
        " --clearenv --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin"
    )
    python_folder = [] if folder.startswith("/usr") else ["--ro-bind", folder, folder]
    empty = f"--proc /proc --dev /dev --size {FILE} --tmpfs /tmp --chdir /tmp"
    bubblewrap = shutil.which("bwrap") or "bwrap"
    return [bubblewrap, *isolate.split(), *python_folder, *empty.split(), python, "-I", "-S", "-c", LAUNCHER]


def execute(line: list[str], program: str, tests: str, seconds: float) -> str:
    """Run a program and its tests in the sandbox by the command `line`; returns why it did not pass, "" if it did.
    Output goes to files, whose size is limited; all processes end with bubblewrap."""
    nonce = secrets.token_hex(16)
    job = json.dumps({"program": program, "tests": tests, "nonce": nonce}).encode()
    options: dict[str, Any] = {"input": job, "timeout": seconds, "env": {}, "cwd": "/"}
    if os.geteuid() == 0:  # as root the limit on processes would not hold
        options |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            subprocess.run(line, stdout=output, stderr=errors, **options)
        except subprocess.TimeoutExpired:
            return "time"
        output.seek(0)
        errors.seek(0)
        if output.read().endswith(nonce.encode()):
            return ""
        lines = errors.read().decode(errors="replace").strip().splitlines()
        return (lines or ["left before its tests ended"])[-1][:200]


@cache
def python() -> tuple[tuple[str, str] | None, str]:
    """Find folder and executable of the first Python that runs in the sandbox, with ""; or None, and why none does."""
    if shutil.which("bwrap") is None:
        return None, "bubblewrap is not installed (program `bwrap`)"
    prefix = Path(sys.base_prefix).resolve()
    reason = ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder, executable in ((str(prefix), str(prefix / "bin" / version)), ("/usr", "/usr/bin/python3")):
        if Path(executable).exists():
            reason = execute(command(folder, executable), "", "", 20)
            if not reason:
                return (folder, executable), ""
    return None, f"bubblewrap does not work here: {reason}"


def probe() -> str:
    """Explain why programs cannot be run; "" if they can."""
    return python()[1]


def run(program: str, tests: str, seconds: float = SECONDS) -> Outcome:
    """Run a program, then its tests, for at most this many seconds. Raises RuntimeError where there is no sandbox."""
    interpreter, reason = python()
    if interpreter is None:
        raise RuntimeError(reason)
    started = time.perf_counter()
    reason = execute(command(*interpreter), program, tests, seconds)
    return Outcome(not reason, reason, time.perf_counter() - started)
