"""Calls of a sampler: of several sizes, in this process or in several, each a function of the seed and its number."""

import itertools
import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.laws import Law
from parity_certify.seeding import row_key
from parity_certify.store import Batch


class Sampled(NamedTuple):
    """What a sampler returns that can count its drafts: tokens [n, L], drafts offered and accepted in all."""

    tokens: Any
    drafted: int
    accepted: int


Sample = Callable[[np.ndarray, int], Any]


def tokens_of(found: Any, rows: int, law: Law) -> np.ndarray:
    """Tokens [rows, L] of what a sampler returned, all behind an end token set to it; ParityError for anything else."""
    L, V, end = law.length, law.vocab, law.end
    if not isinstance(found, list | tuple) and np.ndim(found) == 0:
        raise ParityError(f"sampler: returned {type(found).__name__}; allowed: tokens [n, {L}], or Sampled")
    whole_at_once = isinstance(found, np.ndarray) and found.shape == (rows, L) and found.dtype == np.int64
    if whole_at_once and end is None and found.min(initial=0) >= 0 and found.max(initial=0) < V:
        return found
    lines = [np.asarray(line) for line in found] if isinstance(found, list | tuple) else np.asarray(found)
    if len(lines) != rows:
        raise ParityError(f"sampler: {len(lines)} sequences for {rows} prompts; allowed: one each")
    whole = np.full((rows, L), -1, dtype=np.int64)
    for i, line in enumerate(lines):
        if line.ndim != 1 or len(line) > L or not np.issubdtype(line.dtype, np.integer):
            raise ParityError(f"sampler: row {i}: shape {line.shape} of {line.dtype}; allowed: {L} token numbers")
        ended = end is not None and end in line
        if len(line) < L and not ended:
            raise ParityError(f"sampler: row {i}: {len(line)} tokens and no end token; allowed: {L}")
        whole[i, : len(line)] = line
        if ended and end is not None:
            whole[i, int(np.argmax(line == end)) :] = end
    if rows and (whole.min() < 0 or whole.max() >= V):
        row, at = np.argwhere((whole < 0) | (whole >= V))[0]
        raise ParityError(f"sampler: row {row}, position {at}: token {whole[row, at]}; allowed: 0 to {V - 1}")
    return whole


def one_batch(sample: Sample, law: Law, seed: int, number: int, size: int) -> Batch:
    """Batch `number` under a seed, a function of the two (as far as the sampler heeds its seed)."""
    key = row_key(seed, f"batch {number}") % 2**31
    prompts = np.random.default_rng([seed, number]).integers(len(law.prompts), size=size)
    if number % 4 >= 2:  # the order of prompts varies, too: sorted, up or down
        prompts = np.sort(prompts)[:: 1 if number % 4 == 2 else -1]
    found = sample(law.prompts[prompts], key)
    if isinstance(found, Sampled):
        return Batch(prompts, tokens_of(found.tokens, size, law), int(found.drafted), int(found.accepted))
    return Batch(prompts, tokens_of(found, size, law))


def size_of(seed: int, number: int, batch: int) -> int:
    """Rows of batch `number`: every second one has fewer than `batch`, now and then a single one, so that a sampler
    that is right at one size alone is seen."""
    if number % 2 == 0:
        return batch
    return 1 if number % 16 == 7 else int(np.random.default_rng([seed, number, 1]).integers(1, batch + 1))


def tasks(
    seed: int, number: int, batch: int, vary: bool, fits: Callable[[int, int], int]
) -> Iterator[tuple[int, int, int]]:
    """Seed, number and size of one batch after another; fits(size, rows planned so far): what may be drawn of it."""
    planned = 0
    for k in itertools.count(number):
        size = fits(size_of(seed, k, batch) if vary else batch, planned)
        if size < 1:
            return
        planned += size
        yield seed, k, size


_worker: tuple[Sample, Law]  # what a process of the pool runs


def _begin(pickled: bytes) -> None:
    global _worker
    _worker = pickle.loads(pickled)


def _run(task: tuple[int, int, int]) -> Batch:
    return one_batch(_worker[0], _worker[1], *task)


@contextmanager
def runner(sample: Sample, law: Law, processes: int) -> Iterator[Callable]:
    """A map over tasks, in order. With several processes, which are started afresh, they run side by side."""
    if processes == 1:
        yield lambda tasks: (one_batch(sample, law, *task) for task in tasks)
        return
    try:
        pickled = pickle.dumps((sample, law))
    except Exception:  # pickle raises what the object raises
        what = "the sampler cannot be sent to another process"
        raise ParityError(f"processes {processes}: {what}; allowed: 1, or a function of a module") from None

    def ahead(tasks: Iterator[tuple[int, int, int]]) -> Iterator[Batch]:
        under_way = deque(pool.submit(_run, task) for task in itertools.islice(tasks, 2 * processes))
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(_run, task) for task in itertools.islice(tasks, 1))

    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, start, _begin, (pickled,))
    try:
        yield ahead
    except BrokenProcessPool:
        what = "a process could not load the sampler, or was ended"
        raise ParityError(f"processes {processes}: {what}; allowed: 1, or a function of a module") from None
    finally:
        pool.shutdown(cancel_futures=True)
