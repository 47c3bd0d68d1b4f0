"""The server: a process that holds libraries, and forks itself for a job (see the package).

python -S server.py PIPE        with the listening socket as its file 0
"""

import contextlib
import gc
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from client import NAME, exactly, place, same_user, sent  # of this folder, by path: the package is not imported

# What may differ between the server's environment and a job's: the child takes the job's.
FREE = {
    NAME, "TMPDIR", "TMP", "TEMP", "TEMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "CUDA_VISIBLE_DEVICES",
    "PARITY_COMMAND",  # what was typed, for a page to tell
}  # fmt: skip
Request = dict[str, Any]


def kind_of(argv: Sequence[str]) -> tuple[str, ...]:
    """Commands alike in what they import: the words before the first flag, and the kind of model."""
    words = list(argv)
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    kind = words[words.index("--kind") + 1 :][:1] if "--kind" in words else []
    return (*words[1:first], *kind)


def library(module: Any) -> bool:
    """Whether a module is installed with the interpreter: neither of this package nor of the user's folders."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or ""
    return origin in ("built-in", "frozen") or origin.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))


def bring(names: Sequence[str]) -> None:
    """Import libraries; what cannot be imported alone is left to the jobs."""
    from importlib import import_module

    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        try:
            import_module(name)
        except Exception:
            continue
    if missing:  # what lives now is looked at by no child's collector: its pages stay shared
        gc.collect()
        gc.freeze()


def answer(connection: socket.socket, value: int) -> None:
    """A number to a client, if it is there."""
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("i", value))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Job:
    """A child at work: its process, its client, and where it writes what it has imported."""

    def __init__(self, connection: socket.socket, request: Request):
        self.connection, self.kind = connection, kind_of(request["argv"])
        self.learnt = os.memfd_create("imported")
        self.pid = self.fd = 0
        self.deserted = False


def begun(job: Job, server: int) -> None:
    """In the child: a group of its own that dies with the server."""
    import ctypes

    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def dressed(request: Request, files: Sequence[int], before: dict[str, str]) -> None:
    """In the child: what plain Python would have found: files, folder, environment, arguments, random states."""
    import random
    import site

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    imported = {k: v for k, v in os.environ.items() if k not in before}  # what libraries set when they were imported
    os.environ.clear()
    os.environ.update(imported | request["env"])
    line = bool(os.environ.get("PYTHONUNBUFFERED"))
    told: Any = sys
    told.stdin = told.__stdin__ = os.fdopen(0, closefd=False)
    told.stdout = told.__stdout__ = os.fdopen(1, "w", 1 if line or os.isatty(1) else -1, closefd=False)
    told.stderr = told.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.argv, sys.path[0] = ["-m", *request["argv"][2:]], request["cwd"]
    sys.orig_argv = [sys.executable, *request["argv"]]
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None
    import importlib

    importlib.invalidate_caches()
    site.execsitecustomize()


def run(module: str) -> int:
    """In the child: `python -m module`, and what Python does at its end; the exit code."""
    import atexit
    import ctypes
    import runpy
    import threading
    import traceback

    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    ctypes.CDLL(None).fflush(None)
    return code


def child(job: Job, request: Request, files: Sequence[int], before: dict[str, str], server: int) -> NoReturn:
    code: Any = 1
    try:
        begun(job, server)
        dressed(request, files, before)
        had = set(sys.modules)
        code = run(request["argv"][1])
        if code == 0:
            found = [name for name, module in list(sys.modules.items()) if name not in had and library(module)]
            os.write(job.learnt, "\n".join(found).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


class Server:
    """Accepts jobs until `alive`, a pipe that Snakemake holds, is closed and the last job has ended."""

    def __init__(self, listener: socket.socket, alive: int):
        import selectors

        self.listener, self.alive, self.before, self.at = listener, alive, dict(os.environ), place()
        self.known: dict[tuple[str, ...], list[str]] = {}
        self.jobs: set[Job] = set()
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.selector.register(alive, selectors.EVENT_READ, self.left)

    def serve(self) -> None:
        while self.listener.fileno() >= 0 or self.jobs:
            for key, _ in self.selector.select():
                key.data()

    def left(self) -> None:
        """Snakemake has ended: no new job."""
        for file in (self.alive, self.listener):
            self.selector.unregister(file)
        self.listener.close()

    def fits(self, request: Request) -> bool:
        mine, yours = ({k: v for k, v in e.items() if k not in FREE} for e in (self.before, request["env"]))
        return request["at"] == self.at and mine == yours

    def accept(self) -> None:
        connection = self.listener.accept()[0]
        files: Sequence[int] = []
        try:
            connection.settimeout(10)  # a client that says nothing holds nobody up for long
            if not same_user(connection):
                raise ValueError
            head, files, _, _ = socket.recv_fds(connection, 4, 3)
            request = marshal.loads(exactly(connection, struct.unpack("I", head)[0]))
            connection.settimeout(None)
            if len(files) < 3 or not self.fits(request):
                raise ValueError
            self.fork(connection, request, files)
        except (OSError, EOFError, ValueError, TypeError, KeyError, struct.error):
            answer(connection, 0)  # run it plainly
            connection.close()
        for file in files:
            os.close(file)

    def fork(self, connection: socket.socket, request: Request, files: Sequence[int]) -> None:
        """ValueError where a fork would lose threads."""
        import selectors

        bring(["torch", *self.known.get(kind_of(request["argv"]), ())])
        if threads() > 1:
            raise ValueError
        job, server = Job(connection, request), os.getpid()
        job.pid = os.fork()
        if job.pid == 0:
            self.selector.close()
            self.listener.close()
            os.close(self.alive)
            for other in (*self.jobs, job):
                other.connection.close()
            child(job, request, files, self.before, server)
        os.setpgid(job.pid, job.pid)  # whoever is first
        job.fd = os.pidfd_open(job.pid)
        self.jobs.add(job)
        self.selector.register(job.fd, selectors.EVENT_READ, lambda: self.ended(job))
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.deserted(job))
        answer(connection, job.pid)

    def deserted(self, job: Job) -> None:
        """Its client is gone: so is the job."""
        if job in self.jobs and not job.deserted:
            job.deserted = True
            self.selector.unregister(job.connection)
            sent(job.pid, signal.SIGKILL)

    def ended(self, job: Job) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1])
        self.selector.unregister(job.fd)
        if not job.deserted:
            self.selector.unregister(job.connection)
        size = os.lseek(job.learnt, 0, os.SEEK_END)
        names = os.pread(job.learnt, size, 0).decode().split()
        self.known.setdefault(job.kind, []).extend(names)
        self.jobs.remove(job)
        answer(job.connection, code)
        job.connection.close()
        os.close(job.fd)
        os.close(job.learnt)


def serve() -> None:
    """The server, with the listening socket at file 0 and the pipe at the file that is named."""
    import site
    from types import ModuleType

    sys.path.pop(0), sys.modules.pop("client")  # of the folder of this file: no library's name
    sys.modules["sitecustomize"] = ModuleType("sitecustomize")  # the children run it, as every Python does
    site.main()
    del sys.modules["sitecustomize"]
    sys.path.insert(0, "")  # a child's working folder
    server = Server(socket.socket(fileno=os.dup(0)), int(sys.argv[1]))
    # pandas imports pyarrow, whose allocator would begin a thread here, and after it no job could be forked
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    server.serve()


if __name__ == "__main__":
    serve()
