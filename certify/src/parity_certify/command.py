"""Certify an engine in any language, over stdin and stdout: a JSON object a line.

    certify_command(["./engine"], read_distribution("target.json"), margin=0.05)

    -> {"id": 0, "prompts": [[0], [0], ...], "length": 3, "seed": 17}
    <- {"id": 0, "tokens": [[2, 1, 3], ...], "drafted": 212, "accepted": 140}      or {"id": 0, "error": "..."}

The engine reads a request, answers with one line, flushes, and goes on until stdin ends. `drafted`,
`accepted` and `rounds` are optional; with them, an engine that accepts no draft is inconclusive.

    certify_command(["./engine", "--temperature", "{temperature}"], read_distribution("target.json"))

goes through the conditions of `design.DESIGN` that the placeholders of the command can set: the engine is started once
for each, with the values in their place. Those of `NEUTRAL` are known; the certificate names what could not be set.
"""

import contextlib
import json
import math
import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from parity_certify import design
from parity_certify.calls import COUNTS, Sampled, check_tokens
from parity_certify.certificate import Certificate
from parity_certify.distributions import Distribution, count_prefixes, target_distribution
from parity_certify.errors import ParityError
from parity_certify.processors import Engine as TargetEngine
from parity_certify.processors import rename_options, shape_distribution
from parity_certify.sampler import certify_sampler

NEUTRAL: dict[str, Any] = {  # the placeholders, and their values where a condition does not set them
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "drafts": 2, "end": -1,
}  # fmt: skip
PLACEHOLDER = re.compile(r"(?:^|=)\{([a-z_]+)\}$")


def shorten(line: str) -> str:
    """Cut a line to 120 characters for a message."""
    line = line.strip()
    return line if len(line) <= 120 else line[:120] + "..."


class Engine:
    """A running command as a sampler; errors: the file that receives its stderr; timeout: seconds for an answer."""

    def __init__(
        self, process: subprocess.Popen, name: str, distribution: Distribution, timeout: float, errors: IO[bytes]
    ):
        """Start a thread that reads the stdout of a running process. name: the command, for messages."""
        self.process, self.name, self.distribution, self.timeout, self.errors = (
            process,
            name,
            distribution,
            timeout,
            errors,
        )
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
        reports an error, or does not hold tokens that the distribution allows."""
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
            check_tokens(tokens, rows, self.distribution)
        except ValueError as error:
            raise ParityError(f"{str(error).removeprefix('sampler: ')}; line {shorten(line)!r}") from None
        return Sampled(tokens, *drafts)

    def __call__(self, prompts: np.ndarray, seed: int) -> Sampled:
        """Ask the engine for tokens after prompts [n, P]. A ParityError names the command and the request."""
        request = {"id": self.number, "prompts": prompts.tolist(), "length": self.distribution.length, "seed": seed}
        try:
            sampled = self.parse_answer(self.send_request(request), len(prompts))
        except ParityError as error:
            raise ParityError(f"command: {self.name}: request {self.number}: {error}") from None
        self.number += 1
        return sampled


@contextlib.contextmanager
def start_engine(command: Sequence[str], distribution: Distribution, timeout: float) -> Iterator[Engine]:
    """Context manager: start a command, yield it as a sampler, then kill it. Raises ParityError if it cannot start."""
    name = " ".join(command)
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise ParityError(f"command: {name}: does not start: {error.strerror or error}") from None
        try:
            yield Engine(process, name, distribution, timeout, errors)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # data may remain that an engine that has ended did not read
                    stream.close()  # type: ignore[union-attr]


def list_placeholders(command: Sequence[str]) -> set[str]:
    """List the placeholders of a command: words "{name}", or "--flag={name}". Raises ParityError for one that is not in
    `NEUTRAL`."""
    found = {match[1] for word in command if (match := PLACEHOLDER.search(word))}
    if unknown := found - set(NEUTRAL):
        allowed = ", ".join(f"{{{name}}}" for name in NEUTRAL)
        raise ParityError(f"command: {{{sorted(unknown)[0]}}}: no such option; allowed: {allowed}")
    return found


def fill_in(command: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Put the values of options in place of a command's placeholders."""
    values = NEUTRAL | dict(options)
    found = [PLACEHOLDER.search(word) for word in command]
    return [
        word.replace(f"{{{match[1]}}}", str(values[match[1]])) if match else word
        for word, match in zip(command, found, strict=True)
    ]


def look_up_logits(table: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Look up the logits [n, V], the logs of a table's probabilities [N, V], after tokens [n, t]."""
    V, t = table.shape[1], tokens.shape[1]
    with np.errstate(divide="ignore"):
        rows: np.ndarray = np.log(table[count_prefixes(V, t) + tokens @ V ** np.arange(t - 1, -1, -1)])
    return rows


def make_conditions(
    command: Sequence[str],
    distribution: Distribution,
    engine: TargetEngine,
    timeout: float,
    stack: contextlib.ExitStack,
) -> tuple[list[design.Condition], dict[str, str]]:
    """Make the conditions that a command's placeholders can set, each with an engine that is started on `stack`, and
    tell why others are missing. Raises ParityError for a distribution that depends on the prompt."""
    table = distribution.tables[0]
    if (distribution.tables != table).any():
        raise ParityError(
            "distribution: differs from prompt to prompt; allowed with placeholders: one table, for all prompts"
        )

    def compute(
        options: Mapping[str, Any], *, prompts: np.ndarray, end: int | None, engine: TargetEngine = engine, **sizes: Any
    ) -> Distribution:
        """Enumerate the distribution of the table under an engine's options."""
        P = prompts.shape[1]
        options = rename_options(options, engine)
        source = shape_distribution(lambda tokens: look_up_logits(table, tokens[:, P:]), options, engine, P, end)
        return target_distribution(source, prompts=prompts, end=end, **sizes)

    lacking, known = design.list_lacking(engine), list_placeholders(command)
    chosen, missing = design.choose_options({*known, "length"} - lacking - {"rows"})
    missing = {name: f"the command has no {{{name}}}" for name in missing} | {"rows": "a request has no options"}
    missing |= dict.fromkeys(sorted(lacking - {"rows"}), "the engine has no such option")
    conditions = []
    for options in chosen:
        options["length"] = min(options["length"], distribution.length)
        own = options if distribution.end is None else {"end": distribution.end} | options
        one = design.make_distribution(compute, own, distribution.vocab)
        sampler = stack.enter_context(start_engine(fill_in(command, own), one, timeout))
        suspects = design.list_suspects(compute, own, distribution.vocab, engine)
        conditions.append(design.Condition(design.name_options(options), sampler, one, suspects=suspects))
    return conditions, missing


def certify_command(
    command: Sequence[str],
    distribution: Distribution,
    *,
    timeout: float = 60,
    engine: TargetEngine = "transformers",
    **settings: Any,
) -> Certificate:
    """Certify an engine that answers requests line by line; settings as in `certify_sampler`, but one process and by
    default batches of 500. Raises ParityError for a command that fails.

    timeout   seconds for an answer
    engine    whose options the placeholders are, as in `design.certify_design`; with placeholders, settings are those
              of `design.certify_conditions`, and the budget is its own unless given
    """
    if isinstance(command, str) or not command:
        raise ParityError(f'command {command!r}: allowed: a list, as ["./engine", "--flag"]')
    if not timeout > 0:
        raise ParityError(f"timeout {timeout:g}: allowed: above 0")
    if settings.get("processes", 1) != 1:
        raise ParityError(f"processes {settings['processes']}: allowed: 1, for a command is one process")
    common: dict[str, Any] = {"batch": 500, "name": " ".join(command), "spec": {"command": list(command)}}
    if list_placeholders(command):
        budget = min(60 * (settings.pop("minutes", None) or math.inf), settings.pop("budget", None) or math.inf)
        common["budget"] = design.BUDGET if budget == math.inf else budget
        with contextlib.ExitStack() as stack:
            conditions, missing = make_conditions(command, distribution, engine, timeout, stack)
            return design.certify_conditions(conditions, missing=missing, **common | settings)
    with start_engine(command, distribution, timeout) as process:
        result = certify_sampler(process, distribution, **common | settings)
    untested = [f"{name}: the command has no {{{name}}}" for name in NEUTRAL]
    return replace(result, verdict=replace(result.verdict, untested=(*untested, *result.verdict.untested)))
