"""Call a sampler with batches of several sizes, in one process or several; keep them in a folder, to continue there."""

import itertools
import math
import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parity_certify.distributions import Distribution, convert_to_array
from parity_certify.errors import ParityError
from parity_certify.files import read_arrays, read_json, write_arrays, write_json
from parity_certify.joint_tests import compute_log_e
from parity_certify.seeding import derive_row_key

Sample = Callable[[np.ndarray, int], Any]
COUNTS = ("drafted", "accepted", "rounds")  # names of the counts in `Sampled`, `Batch` and an engine's answer
NO_PADDING = -(2**63)  # which no sampler returns as a token
Task = tuple[int, int, int]  # seed, number and size of a batch


class Sampled(NamedTuple):
    """What a sampler that counts its drafts returns: tokens [n, L], and over all rows the drafts offered, the drafts
    accepted, and the rounds of drafting and verifying (-1: not counted)."""

    tokens: Any
    drafted: int
    accepted: int
    rounds: int = -1


class Batch(NamedTuple):
    """The rows of one call: prompt numbers [n], tokens [n, L], the counts of `Sampled` (-1: not counted), and the token
    that filled rows up after the end (NO_PADDING: none did)."""

    prompts: np.ndarray
    tokens: np.ndarray
    drafted: int = -1
    accepted: int = -1
    rounds: int = -1
    padding: int = NO_PADDING


@dataclass
class Drawn:
    """The samples of one seed so far."""

    counts: np.ndarray  # [K * V^L] how often each prompt and sequence was drawn
    max_log_e: float = -math.inf  # largest log e-value at any look
    batches: list[Batch] = field(default_factory=list)
    seconds: float = 0.0  # time for the sequences sampled now, not read from the folder
    sampled: int = 0  # number of sequences sampled now
    stopped: bool = False  # whether the e-process has ended the sampling
    paddings: set[int] = field(default_factory=set)  # tokens that filled rows up after the end

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def copy(self) -> "Drawn":
        """Copy the samples, so that adding a batch to one leaves the other as it is."""
        return replace(self, counts=self.counts.copy(), batches=[*self.batches], paddings={*self.paddings})

    def add(
        self, batch: Batch, distribution: Distribution, limit: float | None = None, seconds: float | None = None
    ) -> None:
        """Add a batch to the counts, and raise max_log_e if the e-value now exceeds it. Raises ParityError if its rows
        go on after the end token by another token than earlier ones.

        limit    the log e-value at which sampling has stopped; None: it does not
        seconds  the time for all sequences sampled now, if the batch is one of them
        """
        if seconds is not None:
            self.sampled += len(batch.prompts)
            self.seconds = seconds
        self.batches.append(batch)
        self.paddings.add(batch.padding)
        check_paddings(self.paddings, distribution.end)
        self.counts += np.bincount(compute_codes(batch, distribution), minlength=len(self.counts))
        self.max_log_e = max(self.max_log_e, float(compute_log_e(self.counts, distribution.cells)))
        self.stopped = limit is not None and self.max_log_e >= limit

    def count_drafts(self) -> tuple[int | None, int | None, int | None]:
        """Sum drafts offered, accepted, and rounds over the batches. None: a batch lacks drafts (then all) or
        rounds."""
        counted = bool(self.batches) and min(min(b.drafted, b.accepted) for b in self.batches) >= 0
        drafted, accepted, rounds = (sum(getattr(b, key) for b in self.batches) for key in COUNTS)
        if not counted:
            return None, None, None
        return drafted, accepted, rounds if min(b.rounds for b in self.batches) >= 0 else None


def compute_codes(batch: Batch, distribution: Distribution) -> np.ndarray:
    """Compute the cell [n] of each row: the number of its prompt and sequence in `distribution.cells`."""
    return batch.prompts * distribution.vocab**distribution.length + batch.tokens @ distribution.powers


def check_paddings(tokens: Collection[int], end: int | None, rows: str = "sequences") -> None:
    """Raise ParityError if there are several tokens after the end token; rows: which go on, in words."""
    found = sorted(set(tokens) - {NO_PADDING})
    if len(found) > 1:
        shown = f"{', '.join(map(str, found[:4]))}{', ...' * (len(found) > 4)}"
        allowed = "nothing after it, or the same token always, as padding"
        raise ParityError(f"sampler: {rows} go on after the end token {end}, with tokens {shown}; allowed: {allowed}")


def check_tokens(answer: Any, rows: int, distribution: Distribution) -> tuple[np.ndarray, int]:
    """Return a sampler's answer, an array, a tensor or a list of `rows` token rows, as int64 [rows, L], filled up with
    the end token after the first one, and the token that was there (NO_PADDING: none). Raises ParityError for a wrong
    shape, type, length or token, and for rows that go on after the end token: with several tokens, or with one that is
    neither -1 nor in the vocabulary."""
    answer = convert_to_array(answer) if hasattr(answer, "detach") else answer
    L, V, end = distribution.length, distribution.vocab, distribution.end
    allowed = f"allowed: {L}, the distribution's length (--length, in Python length=)"
    if not isinstance(answer, list | tuple) and np.ndim(answer) == 0:
        raise ParityError(f"sampler: returned {type(answer).__name__}; allowed: tokens [n, {L}], or Sampled")
    if len(answer) != rows:
        raise ParityError(f"sampler: {len(answer)} sequences for {rows} prompts; allowed: one each")
    is_array = isinstance(answer, np.ndarray) and answer.shape == (rows, L) and answer.dtype.kind in "iu"
    is_array = is_array and end is None
    tokens = answer.astype(np.int64) if is_array else np.full((rows, L), -1, dtype=np.int64)
    after: list[list[int]] = []  # of each row that does not stop at its end token, what follows
    for i, line in enumerate([] if is_array else map(convert_to_array, answer)):
        if line.ndim != 1 or not np.issubdtype(line.dtype, np.integer):
            raise ParityError(f"sampler: row {i}: shape {line.shape} of {line.dtype}; allowed: {L} token numbers")
        if len(line) > L:
            raise ParityError(f"sampler: row {i}: {len(line)} tokens; {allowed}")
        ended = end is not None and end in line
        if len(line) < L and not ended:
            raise ParityError(f"sampler: row {i}: {len(line)} tokens and no end token; {allowed}")
        tokens[i, : len(line)] = line
        if ended and end is not None:
            first = int(np.argmax(line == end)) + 1
            after += [line[first:].tolist()] if first < len(line) else []
            tokens[i, first:] = end
    paddings = {token for line in after for token in line}
    check_paddings(paddings, end, f"{len(after)} of {rows} sequences")
    padding = min(paddings, default=NO_PADDING)
    if padding not in (NO_PADDING, -1) and not 0 <= padding < V:
        problem = f"{len(after)} of {rows} sequences go on after the end token {end}, with token {padding}"
        raise ParityError(f"sampler: {problem}; allowed: nothing after it, or 0 to {V - 1} or -1 as padding")
    wrong = np.argwhere((tokens < 0) | (tokens >= V))
    if len(wrong):
        row, i = wrong[0]
        raise ParityError(f"sampler: row {row}, position {i}: token {tokens[row, i]}; allowed: 0 to {V - 1}")
    return tokens, padding


@dataclass
class Store:
    """The batches of one sampler on disk, a file for each seed and batch number; without a folder nothing is stored."""

    folder: Path | None = None

    @property
    def where(self) -> str:
        """Where the samples are, in words for messages."""
        return f"kept in {self.folder}" if self.folder else "not kept: no folder was given"

    def locate_batch(self, seed: int, number: int) -> Path | None:
        """Return the path of a batch's file, whether it exists or not; None without a folder."""
        return self.folder and self.folder / "samples" / f"{seed}-{number:05d}.npz"

    def read_batch(self, seed: int, number: int) -> Batch | None:
        """Read a stored batch; None if there is none."""
        file = self.locate_batch(seed, number)
        if file is None or not file.exists():
            return None
        arrays = read_arrays(file)
        counts = (int(arrays.get(key, -1)) for key in COUNTS)
        padding = int(arrays.get("padding", NO_PADDING))
        return Batch(arrays["prompts"], arrays["tokens"], *counts)._replace(padding=padding)

    def write_batch(self, seed: int, number: int, batch: Batch) -> None:
        """Write a batch, if there is a folder. Raises ParityError if that fails, as on a full disk."""
        if file := self.locate_batch(seed, number):
            try:
                write_arrays(file, **{k: np.asarray(v) for k, v in batch._asdict().items()})
            except OSError as error:
                kept = "earlier samples are kept; the same command continues"
                raise ParityError(f"{error.filename or file}: {error.strerror or error}; {kept}") from None

    def read_looks(self, seed: int) -> dict[int, float] | None:
        """Read the earlier looks of a seed: sample sizes at which the tests were made, with the p-value of `all four`
        at each; {} if there were none, None without a folder."""
        if self.folder is None:
            return None
        file = self.folder / f"looks-{seed}.json"
        return {int(n): p for n, p in read_json(file)} if file.exists() else {}

    def write_looks(self, seed: int, looks: dict[int, float] | None) -> None:
        """Write the looks of a seed (see `read_looks`), if there are any and a folder."""
        if self.folder and looks:
            write_json(self.folder / f"looks-{seed}.json", list(looks.items()))

    def forget(self) -> None:
        """Remove the samples and the files made from them (looks, certificate.json); the folder's other files stay."""
        if self.folder:
            for name in ("samples/[0-9]*-[0-9]*.npz", "looks-[0-9]*.json", "certificate.json"):
                for file in self.folder.glob(name):
                    file.unlink()

    def check(self, spec: dict[str, Any]) -> None:
        """Write the sampler's description to spec.json. Raises ParityError if the folder holds that of another one."""
        if self.folder is None:
            return
        file = self.folder / "spec.json"
        if file.exists() and (old := read_json(file)) != spec:
            differing = sorted(k for k in {*old, *spec} if old.get(k) != spec.get(k))
            raise ParityError(
                f"{self.folder}: holds samples of another sampler ({', '.join(differing)} differ);"
                " allowed: another folder, or this one removed"
            )
        write_json(file, spec)


def draw_batch(sample: Sample, distribution: Distribution, seed: int, number: int, size: int) -> Batch:
    """Call the sampler for batch `number` of a seed, with `size` prompts drawn evenly, in two of four batches sorted.
    The batch depends on seed and number alone if the sampler obeys its seed. Raises ParityError: see `check_tokens`."""
    key = derive_row_key(seed, f"batch {number}") % 2**31
    prompts = np.random.default_rng([seed, number]).integers(len(distribution.prompts), size=size)
    if number % 4 >= 2:  # the order of prompts varies, too: they are sorted up or down
        prompts = np.sort(prompts)[:: 1 if number % 4 == 2 else -1]
    answer, counts = sample(distribution.prompts[prompts], key), [-1] * len(COUNTS)
    if isinstance(answer, Sampled):
        answer, counts = answer.tokens, [int(getattr(answer, key)) for key in COUNTS]
        if counts[1] > counts[0] >= 0:
            raise ParityError(f"sampler: {counts[1]} drafts accepted of {counts[0]} offered; allowed: at most as many")
    tokens, padding = check_tokens(answer, size, distribution)
    return Batch(prompts, tokens, *counts)._replace(padding=padding)


def choose_batch_size(seed: int, number: int, batch: int) -> int:
    """Choose how many rows batch `number` has: `batch` if it is even; else fewer, at random, and a single one in one of
    16. This exposes samplers that are right at one size alone."""
    if number % 2 == 0:
        return batch
    return 1 if number % 16 == 7 else int(np.random.default_rng([seed, number, 1]).integers(1, batch + 1))


def plan_batches(seed: int, number: int, batch: int, vary: bool, fits: Callable[[int, int], int]) -> Iterator[Task]:
    """Yield seed, number and size of each batch from `number` on, until none fits. fits(size, rows planned so far) cuts
    a size to what may still be drawn. Sizes are all `batch` unless `vary`."""
    planned = 0
    for k in itertools.count(number):
        size = fits(choose_batch_size(seed, k, batch) if vary else batch, planned)
        if size < 1:
            return
        planned += size
        yield seed, k, size


_worker: tuple[Sample, Distribution]  # what a process of the pool draws its batches from


def _load_worker(pickled: bytes) -> None:
    """Set the sampler and distribution of this process of the pool."""
    global _worker
    _worker = pickle.loads(pickled)


def _run(task: Task) -> Batch:
    """Draw a batch in a process of the pool."""
    return draw_batch(*_worker, *task)


@contextmanager
def open_runner(
    sample: Sample, distribution: Distribution, processes: int
) -> Iterator[Callable[[Iterator[Task]], Iterator[Batch]]]:
    """Context manager: yield a function that turns tasks into their batches, in order, in `processes` processes (1: in
    this one). Raises ParityError if the sampler cannot be sent to another process or fails to load there."""
    if processes == 1:
        yield lambda tasks: (draw_batch(sample, distribution, *task) for task in tasks)
        return
    allowed = "allowed: 1, or a function of a module"
    try:
        pickled = pickle.dumps((sample, distribution))
    except Exception:  # pickle raises whatever the object raises
        raise ParityError(f"processes {processes}: the sampler cannot be sent to another process; {allowed}") from None
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _load_worker, (pickled,))

    def run(tasks: Iterator[Task]) -> Iterator[Batch]:
        """Yield the batches of tasks in order, with two tasks a process under way."""
        waiting = deque(pool.submit(_run, task) for task in itertools.islice(tasks, 2 * processes))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(_run, task) for task in itertools.islice(tasks, 1))

    try:
        yield run
    except BrokenProcessPool:
        problem = "a process could not load the sampler, or was ended"
        raise ParityError(f"processes {processes}: {problem}; {allowed}") from None
    finally:
        pool.shutdown(cancel_futures=True)
