"""Jobs that start warm: one process a workflow keeps the libraries in memory, and forks itself for a job that asks.

Importing torch takes a job seconds, and a run has hundreds of jobs. `begin` (the Snakefile, before the first job)
starts the server, which ends with Snakemake; `prefix` makes the `python` of a rule's shell the client. A job's command
stays what it is: the client hands its arguments, folder, environment and open files over, and the server's child runs
the module as `python -m` would. The client passes signals on and ends as the child ends; killed, it takes the child
along. Where there is no server, or what it would give is not surely what plain Python gives (another interpreter,
environment, container or control group; threads that a fork would lose), the client becomes plain Python.

The server imports no module of this package, so an edited one is never run as it was: what it holds are libraries,
torch and whatever it has seen a job of the same command import. Its socket has a name and no file: nothing is left
behind, nothing can be too long or read-only. Linux alone; another user's process is not heard.
"""

import atexit
import contextlib
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from parity.base.forks.client import NAME

CLIENT, SERVER = (Path(__file__).parent / name for name in ("client.py", "server.py"))
LIBRARIES = ("OMP_NUM", "GOTO_NUM", "OPENBLAS_NUM", "MKL_NUM", "NUMEXPR_NUM", "VECLIB_MAXIMUM")
ONE_THREAD = {f"{library}_THREADS": "1" for library in LIBRARIES}  # as Snakemake says to a job of one thread


def prefix() -> str:
    """What stands before a rule's shell command: its `python` is the client."""
    return f'python() {{ command python -IS {shlex.quote(str(CLIENT))} "$@"; }}; '


def begin() -> None:
    """Start the server and tell this process's children of it; it ends with this process. Where it cannot: nothing."""
    if NAME in os.environ or not hasattr(os, "pidfd_open") or not sys.platform.startswith("linux"):
        return
    name = f"parity-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        os.close(os.pidfd_open(os.getpid()))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen(64)
            alive, held = os.pipe()
            process = subprocess.Popen(
                [sys.executable, "-S", SERVER, str(alive)],
                stdin=listener.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[alive], env=os.environ | ONE_THREAD, start_new_session=True,
            )  # fmt: skip
            os.close(alive)
    except OSError:
        return
    os.environ[NAME] = name

    def end() -> None:
        os.close(held)
        # a job outlives Snakemake, as it always did; a second Ctrl-C is quiet
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(60)

    atexit.register(end)
