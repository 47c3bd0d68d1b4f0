"""The client: a job's `python` in a rule's shell, run by its path (see the package).

python -IS client.py -m parity.decode ...
"""

import contextlib
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NoReturn

NAME = "PARITY_FORKS"  # names the socket to the clients; empty: no server is wanted


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
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


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


if __name__ == "__main__":
    client(sys.argv[1:])
