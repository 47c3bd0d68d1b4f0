"""Jobs that start warm: one process a workflow keeps the libraries in memory, and forks itself for a job that asks.

Importing torch takes a job seconds, and a run has hundreds of jobs. `begin` (the Snakefile, before the first job) starts
the server, which ends with Snakemake; `prefix` makes the `python` of a rule's shell the client, this file as a script.
A job's command stays what it is: the client hands its arguments, folder, environment and open files over, and the
server's child runs the module as `python -m` would. The client passes signals on and ends as the child ends; killed, it
takes the child along. Where there is no server, or what it would give is not surely what plain Python gives (another
interpreter, environment, container or control group; threads that a fork would lose), the client becomes plain Python.

The server imports no module of this package, so an edited one is never run as it was: what it holds are libraries, torch
and whatever it has seen a job of the same command import. Its socket has a name and no file: nothing is left behind, and
nothing can be too long or read-only. Linux alone; another user's process is not heard.
"""

import gc
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

NAME = "PARITY_FORKS"  # names the socket to the clients; empty: no server is wanted
# What may differ between the server's environment and a job's: the child takes the job's.
FREE = {NAME, "TMPDIR", "TMP", "TEMP", "TEMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "CUDA_VISIBLE_DEVICES"}
THREADS = tuple(f"{of}_NUM_THREADS" for of in ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")) + (
    "VECLIB_MAXIMUM_THREADS",
)
Request = dict[str, Any]


def prefix() -> str:
    """What stands before a rule's shell command: its `python` is the client."""
    import shlex

    return f'python() {{ command python -IS {shlex.quote(__file__)} "$@"; }}; '


def place() -> tuple[str, ...]:
    """What a client and the server must share: the interpreter, the container and the control group."""
    with open("/proc/self/cgroup") as stream:
        group = stream.read()
    spaces = (os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "user"))
    return os.path.dirname(sys.executable), sys.version, *spaces, group


def same_user(connection: socket.socket) -> bool:
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", said)[1] == os.getuid()


def exactly(connection: socket.socket, n: int) -> bytes:
    """n bytes; EOFError if the other side ends before."""
    found = b""
    while len(found) < n:
        more = connection.recv(n - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def sent(group: int, number: int) -> None:
    """A signal to a job and what it has started; none if it has ended meanwhile."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


# The client


def plainly(arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *arguments])


def asked(arguments: Sequence[str]) -> int | None:
    """Run a command by the server: its exit code, negative for a signal; None if it must be run plainly."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + os.environ[NAME])
        if not same_user(connection):
            return None
        mask = os.umask(0)
        os.umask(mask)
        request = {"argv": list(arguments), "env": dict(os.environ), "cwd": os.getcwd(), "umask": mask, "at": place()}
        data = marshal.dumps(request)
        socket.send_fds(connection, [struct.pack("I", len(data))], [0, 1, 2])
        connection.sendall(data)
        child = struct.unpack("i", exactly(connection, 4))[0]
        if not child:
            return None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: sent(child, number))
        return struct.unpack("i", exactly(connection, 4))[0]


def client(arguments: Sequence[str]) -> NoReturn:
    code = None
    if os.environ.get(NAME) and arguments[:1] == ["-m"] and arguments[1].startswith("parity."):
        try:
            code = asked(arguments)
        except (OSError, EOFError, ValueError):
            code = None  # the server is gone, and its children with it: files are published whole, so begin anew
    if code is None:
        plainly(arguments)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


# The server


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
    try:
        connection.sendall(struct.pack("i", value))
    except OSError:
        pass


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
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", 1 if line or os.isatty(1) else -1, closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.argv, sys.path[0] = ["-m", *request["argv"][2:]], request["cwd"]
    sys.orig_argv = [sys.executable, *request["argv"]]
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
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
        connection, files = self.listener.accept()[0], []
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

    sys.path.pop(0)  # the folder of this file
    sys.modules["sitecustomize"] = ModuleType("sitecustomize")  # the children run it, as every Python does
    site.main()
    del sys.modules["sitecustomize"]
    sys.path.insert(0, "")  # a child's working folder
    Server(socket.socket(fileno=os.dup(0)), int(sys.argv[2])).serve()


def begin() -> None:
    """Start the server and tell this process's children of it; it ends with this process. Where it cannot: nothing."""
    import atexit
    import subprocess

    if NAME in os.environ or not hasattr(os, "pidfd_open") or not sys.platform.startswith("linux"):
        return
    name = f"parity-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        os.close(os.pidfd_open(os.getpid()))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen(64)
            alive, held = os.pipe()
            one = dict.fromkeys(THREADS, "1")  # as Snakemake says to a job of one thread
            process = subprocess.Popen(
                [sys.executable, "-S", __file__, "serve", str(alive)],
                stdin=listener, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[alive], env=os.environ | one, start_new_session=True,
            )  # fmt: skip
            os.close(alive)
    except OSError:
        return
    os.environ[NAME] = name

    def end() -> None:
        os.close(held)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            pass  # a job outlives Snakemake, as it always did

    atexit.register(end)


if __name__ == "__main__":
    serve() if sys.argv[1:2] == ["serve"] else client(sys.argv[1:])
