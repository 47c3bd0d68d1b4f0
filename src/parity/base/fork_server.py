"""A process that has imported the libraries that take long, and runs commands in copies of itself.

A job of a small network spends most of its time on importing torch and transformers. The workflow starts a server where
there is no GPU (a forked process cannot use CUDA, and there networks are large), and `python -m parity.job` asks it. A
copy imports this package itself, so an edit counts for the next job. The server ends when the process that started it
ends, and its copies with it.

    start()                                 in the workflow: starts a server, and names it in the environment
    ask(module, words)                      in a job: runs a module there; its exit code, or None without a server
    python -m parity.base.fork_server FD    the server: it listens on the socket FD for as long as its stdin is open
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

NAME = "PARITY_FORK_SERVER"  # variable of the environment: the server's Python and address
LIBRARIES = ("torch", "scipy.stats", "pandas", "pydantic", "transformers.models.llama.modeling_llama")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Command(NamedTuple):
    """A module with the words after its name."""

    module: str
    words: list[str]

    def run(self) -> None:
        """Run the module as `python -m` does."""
        sys.argv = [self.module, *self.words]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def start() -> None:
    """Start a server for the jobs of this process, unless one is named, or the system lacks what it takes: pidfds, and
    a folder for temporary files in which a socket has a short name."""
    if NAME in os.environ or not hasattr(os, "pidfd_open"):
        return
    listener = socket.socket(socket.AF_UNIX)
    try:
        folder = tempfile.mkdtemp(prefix="parity-")
        address = f"{folder}/socket"
        listener.bind(address)
    except OSError:
        listener.close()
        return
    listener.listen(1024)
    alive, _kept_open = os.pipe()  # the end that is kept open closes when this process ends, however it ends
    subprocess.Popen(
        [sys.executable, "-m", "parity.base.fork_server", str(listener.fileno()), folder],
        stdin=alive,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,  # Ctrl-C is for the jobs, which forward it
        env=os.environ | dict.fromkeys(THREADS, "1"),
    )
    os.close(alive)
    listener.close()
    os.environ[NAME] = f"{sys.executable}:{address}"


def ask(module: str, words: list[str]) -> int | None:
    """Run a module in a copy of the server, with this process's folder, environment and files; signals are forwarded.
    Returns its exit code, or None if there is no server for this Python. A copy that died of a signal ends this process
    in the same way."""
    python, _, address = os.environ.get(NAME, "").rpartition(":")
    if python != sys.executable:
        return None
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:
        return None
    request = {"module": module, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(request | {"path": sys.path}).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(text)
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:  # as a shell has it for what runs in the background
            signal.signal(number, lambda received, _: server.sendall(bytes([received])))
    server.settimeout(1)  # a signal that comes just before a wait is handled after it
    while True:
        try:
            answer = server.recv(2)
            break
        except TimeoutError:
            continue
    if len(answer) < 2:
        print("error: the fork server ended; run again", file=sys.stderr)
        return 1
    died, code = answer
    if died:
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(code, signal.SIG_DFL)
        os.kill(os.getpid(), code)
    return code


def serve(listener: socket.socket) -> Command:
    """Serve commands until stdin is closed, and end this process then. Returns in a copy of it, with the command that
    the copy runs."""
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ, "alive")
    waiting.register(listener, selectors.EVENT_READ, "listener")
    clients: dict[int, socket.socket] = {}
    while True:
        for key, _ in waiting.select():
            if key.data == "alive":
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                raise SystemExit
            if key.data == "listener":
                client = listener.accept()[0]
                try:
                    request, files = receive(client)
                except (OSError, ValueError):  # who asked is gone
                    client.close()
                    continue
                if (pid := os.fork()) == 0:  # an error from here on ends the copy, and is its own
                    for held in (*clients.values(), client, listener):
                        held.close()
                    waiting.close()
                    return prepare(request, files)
                for file in files:
                    os.close(file)
                clients[pid] = client
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, ("ended", pid))
                waiting.register(client, selectors.EVENT_READ, ("signal", pid))
                continue
            event, pid = key.data
            if pid not in clients:
                continue  # both of its events came at once
            if event == "signal":
                received = clients[pid].recv(1)
                os.kill(pid, received[0] if received else signal.SIGKILL)  # nothing: the client is gone
                if received:
                    continue
            client = clients.pop(pid)
            status = os.waitpid(pid, 0)[1]
            died = os.WIFSIGNALED(status)
            with contextlib.suppress(OSError):
                client.sendall(bytes([died, os.WTERMSIG(status) if died else os.WEXITSTATUS(status)]))
            for other in [k for k in waiting.get_map().values() if k.data in (("ended", pid), ("signal", pid))]:
                waiting.unregister(other.fileobj)
                if isinstance(other.fileobj, int):
                    os.close(other.fileobj)
            client.close()


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive a request and the files that stand for 0, 1 and 2. Raises OSError or ValueError for half of one."""
    size, files, _, _ = socket.recv_fds(client, 8, 3)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        more = client.recv(1 << 20)
        if not more:
            raise ValueError("half a request")
        text += more
    return json.loads(text), files


def prepare(request: dict[str, Any], files: list[int]) -> Command:
    """Make this process, a copy of the server, like the one that asked."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    return Command(request["module"], request["words"])


def run_and_exit(command: Command) -> None:
    """Run a command in this process, a copy of the server, and have the process end once its threads and exit handlers
    are done: Python would then free one by one what the libraries have made, for more than a second."""
    code = 1

    def end() -> None:
        """End this process; registered first, so the last of the handlers."""
        with contextlib.suppress(OSError, ValueError):  # a pipe whose reader is gone; a stream that is closed
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    atexit.register(end)
    try:
        command.run()
        code = 0
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        raise


def main() -> None:
    """Import the libraries that are there, and serve."""
    listener, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    served = os.getpid()
    try:
        for name in LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        command = serve(listener)
    finally:
        if os.getpid() == served:
            shutil.rmtree(folder, ignore_errors=True)
    run_and_exit(command)


if __name__ == "__main__":
    main()
