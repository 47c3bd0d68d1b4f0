"""Certify an engine in any language, over stdin and stdout: a JSON object a line.

    certify_command(["./engine"], read_law("law.json"), margin=0.05)

    -> {"id": 0, "prompts": [[0], [0], ...], "length": 3, "seed": 17}
    <- {"id": 0, "tokens": [[2, 1, 3], ...], "drafted": 212, "accepted": 140}      or {"id": 0, "error": "..."}

The engine reads a request, answers with one line, flushes, and goes on until stdin ends. `drafted` and `accepted` are
optional; with them, an engine that accepts no draft is inconclusive.
"""

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from parity_certify.calls import Sampled, tokens_of
from parity_certify.certificate import Certificate
from parity_certify.errors import ParityError
from parity_certify.laws import Law
from parity_certify.sampler import certify_sampler

SHOWN = 120  # characters of a line in a message


def shorten(line: str) -> str:
    line = line.strip()
    return line if len(line) <= SHOWN else line[:SHOWN] + "..."


class Engine:
    """A running command as a sampler; a context manager that ends the process."""

    def __init__(self, command: Sequence[str], law: Law, timeout: float = 60):
        self.law, self.timeout, self.number = law, timeout, 0
        self.name = " ".join(command)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the exit)
        try:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
            )
        except OSError as error:
            self.errors.close()
            raise ParityError(f"command: {self.name}: does not start: {error.strerror or error}") from None
        self.lines: queue.Queue[bytes] = queue.Queue()  # b"" at the end
        threading.Thread(target=self.read_lines, daemon=True).start()

    def read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self.lines.put(line)
        self.lines.put(b"")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # what was written to an engine that is gone
                pass

    def fail(self, what: str) -> ParityError:
        return ParityError(f"command: {self.name}: request {self.number}: {what}")

    def exited(self) -> ParityError:
        """The error of an engine that ended, with the last line that it wrote to stderr."""
        try:
            code: Any = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = "none: stdout is closed"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        last = f"; stderr: {shorten(lines[-1])}" if lines else ""
        return self.fail(f"the engine ended without an answer (exit code {code}){last}")

    def ask(self, request: dict[str, Any]) -> str:
        """The line that answers a request."""
        assert self.process.stdin is not None
        stdin, line = self.process.stdin, json.dumps(request).encode() + b"\n"

        def send() -> None:
            try:
                stdin.write(line)
                stdin.flush()
            except (OSError, ValueError):
                pass  # the engine has ended: its stdout says so

        threading.Thread(target=send, daemon=True).start()  # an engine that does not read must not stop us
        try:
            answer = self.lines.get(timeout=self.timeout)
        except queue.Empty:
            raise self.fail(f"no answer in {self.timeout:g} seconds") from None
        if not answer:
            raise self.exited()
        return answer.decode(errors="replace")

    def __call__(self, prompts: np.ndarray, seed: int) -> Sampled:
        request = {"id": self.number, "prompts": prompts.tolist(), "length": self.law.length, "seed": seed}
        line = self.ask(request)
        try:
            answer = json.loads(line)
        except ValueError:
            raise self.fail(f"line {shorten(line)!r} is no JSON") from None
        if not isinstance(answer, dict) or answer.get("id") != self.number:
            raise self.fail(f"line {shorten(line)!r}: allowed: an object with the request's id")
        if "error" in answer:
            raise self.fail(f"the engine's error: {shorten(str(answer['error']))}")
        tokens = answer.get("tokens")
        counts = [answer.get(key, -1) for key in ("drafted", "accepted")]
        if not isinstance(tokens, list) or not all(type(count) is int for count in counts):
            allowed = "tokens, a list for each prompt; drafted and accepted, integers"
            raise self.fail(f"line {shorten(line)!r}: allowed: {allowed}")
        try:
            checked = tokens_of(tokens, len(prompts), self.law)
        except (ParityError, ValueError) as error:
            raise self.fail(f"{str(error).removeprefix('sampler: ')}; line {shorten(line)!r}") from None
        self.number += 1
        return Sampled(checked, *counts)


def certify_command(command: Sequence[str], law: Law, *, timeout: float = 60, **settings: Any) -> Certificate:
    """The verdict on an engine that answers requests line by line; settings as in `certify_sampler`.

    timeout   seconds for an answer
    """
    if isinstance(command, str) or not command:
        raise ParityError(f'command {command!r}: allowed: a list, as ["./engine", "--flag"]')
    if not timeout > 0:
        raise ParityError(f"timeout {timeout:g}: allowed: above 0")
    chosen: dict[str, Any] = {"batch": 500, "name": " ".join(command), "spec": {"command": list(command)}}
    chosen |= settings
    if chosen.get("processes", 1) != 1:
        raise ParityError(f"processes {chosen['processes']}: allowed: 1, for a command is one process")
    with Engine(command, law, timeout) as engine:
        return certify_sampler(engine, law, **chosen)
