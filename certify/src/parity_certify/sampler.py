"""Certify a black box: whatever turns prompts and a seed into tokens, against a law that is known.

    certify_sampler(sample, law, margin=0.05)      sample(prompts [n, P], seed) -> tokens [n, L], or `Sampled`

Prompts are drawn evenly from the law's, so a fault that shows behind some prompts alone is seen.
"""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from parity_certify import evidence
from parity_certify import rows as R
from parity_certify.certificate import Certificate, concluded
from parity_certify.counts import log_e
from parity_certify.errors import ParityError
from parity_certify.files import canonical
from parity_certify.keys import row_key
from parity_certify.laws import Law
from parity_certify.named import name_of
from parity_certify.rows import Row
from parity_certify.store import Batch, Store

CHANCE = 1e-9  # repeats less likely than this in independent samples are no chance


class Sampled(NamedTuple):
    """What a sampler returns that can count its drafts: tokens [n, L], drafts offered and accepted in all."""

    tokens: Any
    drafted: int
    accepted: int


Sample = Callable[[np.ndarray, int], Any]


@dataclass
class Drawn:
    """What one seed gave so far."""

    counts: np.ndarray  # [K * V^L]
    best: float = -math.inf  # largest log e-value at any look
    batches: list[Batch] = field(default_factory=list)
    seconds: float = 0.0  # of what was sampled now
    fresh: int = 0  # sequences sampled now
    stopped: bool = False  # by the e-process

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def drafts(self) -> tuple[int | None, int | None]:
        """Offered and accepted; None where the engine does not say."""
        said = [(b.drafted, b.accepted) for b in self.batches]
        if not said or min(min(pair) for pair in said) < 0:
            return None, None
        return sum(d for d, _ in said), sum(a for _, a in said)


def tokens_of(found: Any, rows: int, law: Law) -> np.ndarray:
    """Tokens [rows, L] of what a sampler returned, all behind an end token set to it; ParityError for anything else."""
    L, V, end = law.length, law.vocab, law.end
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
    found = sample(law.prompts[prompts], key)
    if isinstance(found, Sampled):
        return Batch(prompts, tokens_of(found.tokens, size, law), int(found.drafted), int(found.accepted))
    return Batch(prompts, tokens_of(found, size, law))


_worker: Any = None  # what the processes of a pool run


def _run(task: tuple[int, int, int]) -> tuple[Batch, float]:
    sample, law = _worker
    begin = time.perf_counter()
    return one_batch(sample, law, *task), time.perf_counter() - begin


@contextmanager
def runner(sample: Sample, law: Law, processes: int) -> Iterator[Callable]:
    """A map over tasks, in order; with several processes they run side by side."""
    global _worker
    _worker = (sample, law)
    try:
        if processes == 1:
            yield lambda tasks: map(_run, tasks)
        else:
            with multiprocessing.get_context("fork").Pool(processes) as pool:
                yield lambda tasks: pool.imap(_run, tasks)
    finally:
        _worker = None


def code(batch: Batch, law: Law) -> np.ndarray:
    """Cell [n] of each row."""
    powers = law.vocab ** np.arange(law.length - 1, -1, -1)
    return batch.prompts * law.vocab**law.length + batch.tokens @ powers


def check_repeats(batches: Sequence[Batch], law: Law) -> None:
    """ParityError for samples that are copies of others: of the same row under the seed before, or of the last row with
    the same prompt. Compared with how often independent samples of this sampler's own law would agree."""
    codes = np.concatenate([code(b, law) for b in batches])
    prompts = np.concatenate([b.prompts for b in batches])
    size, n = len(batches[0].prompts), len(codes)
    share = np.bincount(codes, minlength=len(law.cells)).reshape(len(law.prompts), -1).astype(float)
    total = share.sum(1, keepdims=True)
    agree = ((share * (share - 1)).sum(1) / np.maximum(total * (total - 1), 1)[:, 0]).clip(0, 1)  # by prompt

    def surprising(first: np.ndarray, second: np.ndarray) -> bool:
        both = prompts[first] == prompts[second]
        m, hits = int(both.sum()), int((codes[first] == codes[second])[both].sum())
        chance = float(agree[prompts[first]][both].mean()) if m else 1.0
        return m >= 10 and special.bdtrc(hits - 1, m, chance) < CHANCE

    if surprising(np.arange(n - size), np.arange(size, n)):
        raise ParityError("sampler: the same samples under different seeds; allowed: a sampler that heeds its seed")
    order = np.argsort(prompts, kind="stable")
    if surprising(order[:-1], order[1:]):
        raise ParityError("sampler: repeats its last sample (a cache?); allowed: independent samples")


def gather(
    sample: Sample,
    law: Law,
    seed: int,
    n: int,
    store: Store,
    *,
    batch: int,
    alpha: float,
    stop: bool,
    processes: int = 1,
    until: Callable[[Drawn], int] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Drawn:
    """n samples of one seed, those that are kept first; fewer if `stop` and the e-process decides.

    until  the size by the speed of the first batch sampled now, for a time limit
    """
    found, number, limit = Drawn(np.zeros(len(law.cells), dtype=np.int64)), 0, n

    def add(one: Batch) -> bool:
        found.batches.append(one)
        found.counts += np.bincount(code(one, law), minlength=len(found.counts))
        found.best = max(found.best, float(log_e(found.counts, law.cells)))
        found.stopped = stop and found.best >= math.log(2 / alpha)
        return found.stopped

    while found.n < limit and (kept := store.get(seed, number)) is not None:
        number += 1
        if add(kept):
            return found
    if found.n >= limit:
        return found
    begin = time.perf_counter()
    with runner(sample, law, processes) as run:
        tasks = ((seed, k, batch) for k in range(number, number + -(-(limit - found.n) // batch)))
        try:
            for one, _ in run(tasks):
                store.put(seed, number, one)
                number, found.fresh = number + 1, found.fresh + len(one.prompts)
                found.seconds = time.perf_counter() - begin
                done = add(one)
                if until is not None:
                    limit, until = min(limit, max(found.n, until(found))), None
                tell(f"{found.n} of {limit} sequences, {found.fresh / max(found.seconds, 1e-9):.1f} a second")
                if done or found.n >= limit:
                    break
        except (ParityError, KeyboardInterrupt):
            raise
        except Exception as error:
            where = f"kept in {store.folder}" if store.folder else "not kept: no folder was given"
            what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise ParityError(f"sampler: failed after {found.n} sequences ({where}): {what}") from error
    return found


def rows_of(found: Drawn, law: Law, seed: int, store: Store, alpha: float, draws: int) -> list[Row]:
    """The rows of one seed; a size that was fixed beforehand counts as a look."""
    looks, fixed, look = store.looks(seed), not found.stopped, None
    if looks is not None:
        look = list(looks).index(found.n) if found.n in looks else len(looks)
    about: dict[str, Any] = {
        "seed": seed,
        "best": found.best,
        "look": look,
        "fixed": fixed,
        "alpha": alpha,
        "draws": draws,
    }
    rows = evidence.sample_rows(found.counts, law, **about)
    own = next(r["p_value"] for r in rows if r["test"] == "all four")
    if looks is not None and fixed:
        looks[found.n] = 1.0 if own is None else own
        store.looked(seed, looks)
    decision = next(r for r in rows if r["test"] == "all looks")
    for j, p in enumerate((looks or {}).values()):
        decision["p_value"] = decision["p_holm"] = max(min(decision["p_value"], 2.0 ** (j + 2) * p), R.SMALLEST)
    decision["verdict"] = "rejected" if decision["p_value"] <= alpha else "not rejected"
    return [*rows, *(evidence.prompt_rows(found.counts, law, seed) if len(law.prompts) > 1 else [])]


def check_settings(**given: float | None) -> None:
    """ParityError for sizes that are none."""
    for key, value in given.items():
        below = key in ("margin", "alpha")
        if value is not None and not (0 < value < 1 if below else value > 0):
            raise ParityError(f"{key} {value:g}: allowed: above 0{', below 1' if below else ''}")


def certify_sampler(
    sample: Sample,
    law: Law,
    *,
    n: int | None = None,
    minutes: float | None = None,
    repeat: int | None = None,
    margin: float = 0.05,
    alpha: float = R.ALPHA,
    seeds: Sequence[int] = (0, 1),
    batch: int = 100,
    processes: int = 1,
    folder: Path | None = None,
    spec: dict[str, Any] | None = None,
    name: str = "",
    claim: str = "lossless",
    draws: int = evidence.DRAWS,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Certificate:
    """Draw until the e-process rejects or the sample is as large as was asked; what it rejects is repeated on the next
    seed.

    n        sequences; None: as many as a perfect sampler needs for a bound below `margin`, and no more than fit into
             `minutes` at the speed of the first batch
    repeat   sequences on the next seed; None: twice those of the first
    alpha    false alarms: the rate at which a correct sampler is rejected on the first seed
    folder   where samples are kept; a second call with the same sampler goes on there
    spec     what the sampler is (kept beside the samples: another one's are refused)
    """
    check_settings(n=n, minutes=minutes, repeat=repeat, margin=margin, alpha=alpha, batch=batch, processes=processes)
    store, name = Store(folder), name or name_of(sample)
    about = {"length": law.length, "vocab": law.vocab, "end": law.end, "prompts": law.prompts.tolist(), "batch": batch}
    store.check({"sampler": spec or name, **about, "law": canonical([round(float(p), 9) for p in law.cells[:64]])})
    wanted = -(-(n or evidence.needed(law.cells, margin, R.ALPHA / 2 if folder else R.ALPHA)) // batch) * batch

    def until(found: Drawn) -> int:
        """The size for the time, and what can be seen with it: said before the rest is sampled."""
        rate = found.fresh / found.seconds
        size = wanted if minutes is None else min(wanted, max(1, int(rate * 60 * minutes) // batch) * batch)
        bound, least = evidence.expected_bound(law.cells, size), R.detectable_tv(size)
        limits = (
            f"a correct sampler's bound is about TV <= {bound:.3f}; the least TV that any test can find {least:.3f}"
        )
        tell(f"{rate:.1f} sequences a second: {size} take {size / rate / 60:.1f} minutes; {limits}")
        return size

    common: dict[str, Any] = {"batch": batch, "alpha": alpha, "processes": processes, "tell": tell}
    first = gather(sample, law, seeds[0], wanted, store, stop=True, until=until, **common)
    check_repeats(first.batches, law)
    rows, samples = rows_of(first, law, seeds[0], store, alpha, draws), [first]
    if len(seeds) > 1 and any(r["decides"] and r["verdict"] == "rejected" for r in rows):
        size = -(-(repeat or max(first.n, min(2 * first.n, wanted))) // batch) * batch
        tell(f"rejected after {first.n} sequences; again on seed {seeds[1]}, {size} sequences")
        second = gather(sample, law, seeds[1], size, store, stop=False, **common)
        rows += [r | {"repeat": 1} for r in rows_of(second, law, seeds[1], store, alpha, draws)]
        check_repeats([*first.batches, *second.batches], law)
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    counts = samples[-1].counts
    return concluded(rows, law, counts, samples, margin=margin, alpha=alpha, claim=claim, name=name)
