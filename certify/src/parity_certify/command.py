"""Certify an engine in any language, over stdin and stdout: a JSON object a line.

    certify_command(["./engine"], read_law("law.json"), margin=0.05)

    -> {"id": 0, "prompts": [[0], [0], ...], "length": 3, "seed": 17}
    <- {"id": 0, "tokens": [[2, 1, 3], ...], "drafted": 212, "accepted": 140}      or {"id": 0, "error": "..."}

The engine reads a request, answers with one line, flushes, and goes on until stdin ends. `drafted`,
`accepted` and `rounds` are optional; with them, an engine that accepts no draft is inconclusive.
"""

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from parity_certify.calls import COUNTS, Sampled, check_tokens
from parity_certify.certificate import Certificate
from parity_certify.errors import ParityError
from parity_certify.laws import Law
from parity_certify.sampler import certify_sampler


def shorten(line: str) -> str:
    """Cut a line to 120 characters for a message."""
    line = line.strip()
    return line if len(line) <= 120 else line[:120] + "..."


class Engine:
    """A running command as a sampler; errors: the file that receives its stderr; timeout: seconds for an answer."""

    def __init__(self, process: subprocess.Popen, name: str, law: Law, timeout: float, errors: IO[bytes]):
        """Start a thread that reads the stdout of a running process. name: the command, for messages."""
        self.process, self.name, self.law, self.timeout, self.errors = process, name, law, timeout, errors
        self.number = 0
        self.lines: queue.Queue[bytes] = queue.Queue()  # lines of the engine's stdout; b"" says that it has ended
        threading.Thread(target=self.queue_lines, daemon=True).start()

    def queue_lines(self) -> None:
        """Put each line of the engine's stdout into the queue `lines`, then b"" when it ends. Runs in a thread."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self.lines.put(line)
        self.lines.put(b"")

    def send_request(self, request: dict[str, Any]) -> str:
        """Send a request as a line; return the line that answers. Raises ParityError if the engine is late or ended."""
        stdin = self.process.stdin
        line = json.dumps(request).encode() + b"\n"

        def send() -> None:
            """Write the request to the engine's stdin."""
            assert stdin is not None
            with contextlib.suppress(OSError, ValueError):  # stdout tells whether the engine has ended
                stdin.write(line)
                stdin.flush()

        threading.Thread(target=send, daemon=True).start()  # an engine that does not read must not stop us
        try:
            answer = self.lines.get(timeout=self.timeout)
        except queue.Empty:
            raise ParityError(f"no answer in {self.timeout:g} seconds") from None
        if answer:
            return answer.decode(errors="replace")
        code: Any = "none: stdout is closed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(5)
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        stderr = f"; stderr: {shorten(lines[-1])}" if lines else ""
        raise ParityError(f"the engine ended without an answer (exit code {code}){stderr}")

    def parse_answer(self, line: str, rows: int) -> Sampled:
        """Parse an answer line for `rows` prompts. Raises ParityError if it is no JSON, has another request's id,
        reports an error, or does not hold tokens that the law allows."""
        try:
            answer = json.loads(line)
        except ValueError:
            raise ParityError(f"line {shorten(line)!r} is no JSON") from None
        if not isinstance(answer, dict) or answer.get("id") != self.number:
            raise ParityError(f"line {shorten(line)!r}: allowed: an object with the request's id")
        if "error" in answer:
            raise ParityError(f"the engine's error: {shorten(str(answer['error']))}")
        tokens = answer.get("tokens")
        drafts = [answer.get(key, -1) for key in COUNTS]
        if not isinstance(tokens, list) or not all(type(count) is int for count in drafts):
            allowed = "tokens, a list for each prompt; drafted, accepted and rounds, integers"
            raise ParityError(f"line {shorten(line)!r}: allowed: {allowed}")
        try:
            return Sampled(check_tokens(tokens, rows, self.law), *drafts)
        except ValueError as error:
            raise ParityError(f"{str(error).removeprefix('sampler: ')}; line {shorten(line)!r}") from None

    def __call__(self, prompts: np.ndarray, seed: int) -> Sampled:
        """Ask the engine for tokens after prompts [n, P]. A ParityError names the command and the request."""
        request = {"id": self.number, "prompts": prompts.tolist(), "length": self.law.length, "seed": seed}
        try:
            sampled = self.parse_answer(self.send_request(request), len(prompts))
        except ParityError as error:
            raise ParityError(f"command: {self.name}: request {self.number}: {error}") from None
        self.number += 1
        return sampled


@contextlib.contextmanager
def start_engine(command: Sequence[str], law: Law, timeout: float) -> Iterator[Engine]:
    """Context manager: start a command, yield it as a sampler, then kill it. Raises ParityError if it cannot start."""
    name = " ".join(command)
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise ParityError(f"command: {name}: does not start: {error.strerror or error}") from None
        try:
            yield Engine(process, name, law, timeout, errors)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # data may remain that an engine that has ended did not read
                    stream.close()  # type: ignore[union-attr]


def certify_command(command: Sequence[str], law: Law, *, timeout: float = 60, **settings: Any) -> Certificate:
    """Certify an engine that answers requests line by line; settings as in `certify_sampler`, but one process and by
    default batches of 500. timeout: seconds for an answer. Raises ParityError for a command that fails."""
    if isinstance(command, str) or not command:
        raise ParityError(f'command {command!r}: allowed: a list, as ["./engine", "--flag"]')
    if not timeout > 0:
        raise ParityError(f"timeout {timeout:g}: allowed: above 0")
    if settings.get("processes", 1) != 1:
        raise ParityError(f"processes {settings['processes']}: allowed: 1, for a command is one process")
    common: dict[str, Any] = {"batch": 500, "name": " ".join(command), "spec": {"command": list(command)}}
    with start_engine(command, law, timeout) as engine:
        return certify_sampler(engine, law, **common | settings)
