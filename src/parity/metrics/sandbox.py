"""Run generated Python in a sandbox: bubblewrap (no network, no files but the interpreter's, its own processes) and
resource limits.

    probe() -> ""                    or the reason why it cannot work here
    run(program, tests) -> Outcome   passed only if every test ran to its end

The program cannot reach the machine: it sees the interpreter, an empty /tmp, and nothing of the user's. The verdict is
the parent's: a number that the program was not told must come back after the last test, so a program that leaves early
or redefines the check has failed. Tests see the program's functions alone, under builtins saved before it ran.

What is left: a program that searches the interpreter's own frames could find the number. It would cheat the score, not
the machine.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

SECONDS, MEMORY, FILE, OUTPUT, PROCESSES = 5.0, 1 << 30, 10 << 20, 64 << 10, 64
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
    why: str  # "" if passed; else the last line of what went wrong
    seconds: float


def interpreters() -> list[tuple[str, str]]:
    """Pythons that may be shown to the program: (folder to bind, executable)."""
    own = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [(str(own), str(own / "bin" / version)), ("/usr", "/usr/bin/python3")]


def command(folder: str, python: str) -> list[str]:
    isolate = (
        f"--unshare-all --unshare-user --uid {NOBODY} --gid {NOBODY} --cap-drop ALL --die-with-parent --new-session"
    )
    isolate += " --clearenv --ro-bind /usr /usr"
    isolate += "".join(f" --symlink usr/{link} /{link}" for link in ("lib", "lib64", "bin"))
    own = [] if folder.startswith("/usr") else ["--ro-bind", folder, folder]
    empty = f"--proc /proc --dev /dev --size {FILE} --tmpfs /tmp --chdir /tmp"
    return [
        shutil.which("bwrap") or "bwrap",
        *isolate.split(),
        *own,
        *empty.split(),
        python,
        "-I",
        "-S",
        "-c",
        LAUNCHER,
    ]


def execute(line: list[str], job: dict[str, str], seconds: float) -> tuple[bytes, bytes, bool]:
    """Output, errors (both cut) and whether time ran out. The whole session is killed at the end, whatever happened."""
    how: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    if os.geteuid() == 0:  # root's processes escape RLIMIT_NPROC
        how |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    process: Any = subprocess.Popen(line, start_new_session=True, env={}, cwd="/", **how)
    kept: dict[str, bytes] = {}

    def drain(name: str) -> None:
        stream, said = getattr(process, name), b""
        while block := stream.read(4096):
            said += block[: OUTPUT - len(said)]  # what comes after is read and dropped, so that nobody waits
        kept[name] = said

    readers = [Thread(target=drain, args=(name,), daemon=True) for name in ("stdout", "stderr")]
    for reader in readers:
        reader.start()
    late = False
    try:
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
        for reader in readers:
            reader.join(5)
    return kept.get("stdout", b""), kept.get("stderr", b""), late


def last_line(errors: bytes, silent: str) -> str:
    """The last line a program printed, or `silent` if it printed nothing."""
    return (errors.decode(errors="replace").strip().splitlines() or [silent])[-1]


@cache
def python() -> tuple[tuple[str, str] | None, str]:
    """The first interpreter that runs in the sandbox, or why none does."""
    if shutil.which("bwrap") is None:
        return None, "bubblewrap is not installed (program `bwrap`)"
    why = ""
    for folder, executable in interpreters():
        if not Path(executable).exists():
            continue
        nonce = secrets.token_hex(8)
        out, errors, late = execute(command(folder, executable), {"program": "", "tests": "", "nonce": nonce}, 20)
        if out == nonce.encode():
            return (folder, executable), ""
        why = "it did not start within 20 seconds" if late else last_line(errors, "no output")
    return None, f"bubblewrap does not work here: {why}"


def probe() -> str:
    """ "" if programs can be run, else the reason."""
    return python()[1]


def run(program: str, tests: str, seconds: float = SECONDS) -> Outcome:
    """Run a program, then its tests. RuntimeError where there is no sandbox: nothing is ever run outside one."""
    interpreter, reason = python()
    if interpreter is None:
        raise RuntimeError(reason)
    nonce, begin = secrets.token_hex(16), time.perf_counter()
    out, errors, late = execute(command(*interpreter), {"program": program, "tests": tests, "nonce": nonce}, seconds)
    passed = out.endswith(nonce.encode()) and not late
    why = "" if passed else "time" if late else last_line(errors, "left before its tests ended")
    return Outcome(passed, why[:200], time.perf_counter() - begin)
