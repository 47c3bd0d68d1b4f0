"""Certify a black box: whatever turns prompts and a seed into tokens, against a law that is known.

    certify_sampler(sample, law, margin=0.05)      sample(prompts [n, P], seed) -> tokens [n, L], or `Sampled`

Prompts are drawn evenly from the law's, so a fault that shows behind some prompts alone is seen.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from parity_certify import evidence
from parity_certify import result_rows as R
from parity_certify.calls import Sample, runner, tasks
from parity_certify.certificate import Certificate, concluded
from parity_certify.errors import ParityError
from parity_certify.files import canonical
from parity_certify.import_by_name import name_of
from parity_certify.independence import LAGS
from parity_certify.joint_tests import log_e
from parity_certify.laws import Law
from parity_certify.result_rows import Row
from parity_certify.store import Batch, Store

CHANCE = 1e-9  # repeats less likely than this in independent samples are no chance


@dataclass
class Drawn:
    """What one seed gave so far."""

    counts: np.ndarray  # [K * V^L]
    best: float = -math.inf  # largest log e-value at any look
    batches: list[Batch] = field(default_factory=list)
    seconds: float = 0.0  # of what was sampled now
    fresh: int = 0  # sequences sampled now
    before: int = 0  # sequences that were kept
    stopped: bool = False  # by the e-process

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def fitting(self, size: int, deadline: float) -> int:
        """Rows of a batch that can be drawn before the deadline; 10 while the speed is not known."""
        if deadline == math.inf:
            return size
        if not self.fresh:
            return min(size, 10)
        return min(size, int((deadline - time.monotonic()) * self.fresh / self.seconds))

    def drafts(self) -> tuple[int | None, int | None]:
        """Offered and accepted; None where the engine does not say."""
        said = [(b.drafted, b.accepted) for b in self.batches]
        if not said or min(min(pair) for pair in said) < 0:
            return None, None
        return sum(d for d, _ in said), sum(a for _, a in said)


def code(batch: Batch, law: Law) -> np.ndarray:
    """Cell [n] of each row."""
    powers = law.vocab ** np.arange(law.length - 1, -1, -1)
    return batch.prompts * law.vocab**law.length + batch.tokens @ powers


def check_repeats(batches: Sequence[Batch], law: Law) -> None:
    """ParityError for samples that are copies of others: of the same row under the seed before, or of the last row with
    the same prompt. Compared with how often independent samples of this sampler's own law would agree."""
    codes = np.concatenate([code(b, law) for b in batches])
    prompts = np.concatenate([b.prompts for b in batches])
    share = np.bincount(codes, minlength=len(law.cells)).reshape(len(law.prompts), -1).astype(float)
    total = share.sum(1, keepdims=True)
    agree = ((share * (share - 1)).sum(1) / np.maximum(total * (total - 1), 1)[:, 0]).clip(0, 1)  # by prompt

    def agreeing(first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
        both = prompts[first] == prompts[second]
        return int((codes[first] == codes[second])[both].sum()), int(both.sum())

    def surprising(first: np.ndarray, second: np.ndarray, others: np.ndarray) -> bool:
        """Whether rows `first` and `second` agree more often than independent ones, and than `second` and `others`."""
        (hits, m), (beside, of) = agreeing(first, second), agreeing(others, second[: len(others)])
        same = prompts[first] == prompts[second]
        chance = max(float(agree[prompts[first]][same].mean()) if m else 1.0, min(1.0, (beside + 1) / (of + 1)))
        return m >= 10 and special.bdtrc(hits - 1, m, chance) < CHANCE

    sizes = [len(b.prompts) for b in batches]
    begin = np.cumsum(sizes) - sizes
    pairs = [(k - 2, k) for k in range(2, len(batches))] or [(0, 1)] * (len(batches) > 1)
    rows = [np.arange(min(sizes[i], sizes[j])) for i, j in pairs]
    none = [np.zeros(0, dtype=int)]
    before = np.concatenate([begin[i] + r for (i, _), r in zip(pairs, rows, strict=True)] or none)
    now = np.concatenate([begin[j] + r for (_, j), r in zip(pairs, rows, strict=True)] or none)
    if surprising(before, now, np.roll(before, 1)):
        raise ParityError("sampler: the same samples under different seeds; allowed: a sampler that heeds its seed")
    order = np.argsort(prompts, kind="stable")
    if surprising(order[:-1], order[1:], order[6:]):
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
    deadline: float = math.inf,
    vary: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Drawn:
    """n samples of one seed, those that are kept first; fewer if `stop` and the e-process decides.

    until     the size by the speed of the first batch sampled now, for a time limit
    deadline  time.monotonic() at which sampling stops, whatever was drawn: batches are cut to what fits
    vary      whether batches are of several sizes
    """
    found, number, limit = Drawn(np.zeros(len(law.cells), dtype=np.int64)), 0, n

    def add(one: Batch) -> bool:
        found.batches.append(one)
        found.counts += np.bincount(code(one, law), minlength=len(found.counts))
        found.best = max(found.best, float(log_e(found.counts, law.cells)))
        found.stopped = stop and found.best >= math.log(2 * evidence.SHARES / alpha)
        return found.stopped

    while found.n < limit and (kept := store.get(seed, number)) is not None:
        number += 1
        if add(kept):
            return found
    if found.n >= limit:
        return found
    begin, found.before = time.perf_counter(), found.n

    def fits(size: int, planned: int) -> int:
        return found.fitting(min(size, limit - found.before - planned), deadline)

    with runner(sample, law, processes) as run:
        try:
            for one in run(tasks(seed, number, batch, vary, fits)):
                store.put(seed, number, one)
                number, found.fresh = number + 1, found.fresh + len(one.prompts)
                found.seconds = time.perf_counter() - begin
                done = add(one)
                if until is not None:
                    limit, until = min(limit, max(found.n, until(found))), None
                tell(f"{found.n} of {limit} sequences, {found.fresh / max(found.seconds, 1e-9):.1f} a second")
                if done:
                    break
        except (ParityError, KeyboardInterrupt, BrokenProcessPool):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise ParityError(f"sampler: failed after {found.n} sequences ({store.where}): {what}") from error
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
    together = evidence.independence_row(found.batches, law, seed, alpha)
    R.family([decision, together], alpha)
    return [*rows, together, *(evidence.prompt_rows(found.counts, law, seed) if len(law.prompts) > 1 else [])]


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
    budget: float | None = None,
    repeat: int | None = None,
    margin: float = 0.05,
    alpha: float = R.ALPHA,
    seeds: Sequence[int] = (0, 1),
    batch: int = 100,
    vary: bool = True,
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
    budget   seconds for everything: sampling stops in time, and the verdict says what could be seen; a repeat has the
             last third
    repeat   sequences on the next seed; None: twice those of the first
    batch    sequences of a call, at most; `vary`: every second call has fewer, for a fault may depend on the number
    alpha    false alarms: the rate at which a correct sampler is rejected on the first seed
    folder   where samples are kept; a second call with the same sampler goes on there
    spec     what the sampler is (kept beside the samples: another one's are refused)
    """
    check_settings(n=n, minutes=minutes, budget=budget, repeat=repeat, margin=margin, alpha=alpha)
    check_settings(batch=batch, processes=processes)
    begin, allowed = time.monotonic(), math.inf if budget is None else 0.95 * budget
    store, name = Store(folder), name or name_of(sample)
    store.check({"sampler": spec or name, "batch": batch, "vary": vary, **described(law)})
    wanted = -(-(n or evidence.needed(law.cells, margin, R.ALPHA / 2 if folder else R.ALPHA)) // batch) * batch
    common: dict[str, Any] = {"batch": batch, "alpha": alpha, "vary": vary, "processes": processes, "tell": tell}
    until = fitted(law, wanted, minutes, batch, tell) if budget is None else None
    soon = begin + 2 / 3 * allowed
    first = gather(sample, law, seeds[0], wanted, store, stop=True, until=until, deadline=soon, **common)
    check_repeats(first.batches, law)
    rows, samples = rows_of(first, law, seeds[0], store, alpha, draws), [first]
    if len(seeds) > 1 and any(r["decides"] and r["verdict"] == "rejected" for r in rows):
        size = -(-(repeat or max(first.n, min(2 * first.n, wanted))) // batch) * batch
        tell(f"rejected after {first.n} sequences; again on seed {seeds[1]}, {size} sequences")
        second = gather(sample, law, seeds[1], size, store, stop=False, deadline=begin + allowed, **common)
        rows += [r | {"repeat": 1} for r in rows_of(second, law, seeds[1], store, alpha, draws)]
        check_repeats([*first.batches, *second.batches], law)
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    counts = samples[-1].counts
    found = concluded(rows, law, counts, samples, margin=margin, alpha=alpha, claim=claim, name=name)
    least = next(r["minimum_detectable_effect"] for r in rows if r["test"] == evidence.INDEPENDENCE)
    tested, untested = reach(first, law, batch, vary, least)
    found.verdict = replace(found.verdict, tested=tested, untested=untested)
    found.beside |= {"budget": budget, "seconds": time.monotonic() - begin}
    return found


def described(law: Law) -> dict[str, Any]:
    """What of a law is kept beside samples."""
    about = {"length": law.length, "vocab": law.vocab, "end": law.end, "prompts": law.prompts.tolist()}
    return about | {"law": canonical([round(float(p), 9) for p in law.cells[:64]])}


def fitted(
    law: Law, wanted: int, minutes: float | None, batch: int, tell: Callable[[str], None]
) -> Callable[[Drawn], int]:
    """The size for the time, by the speed so far, and what can be seen with it: said before the rest is sampled."""

    def until(found: Drawn) -> int:
        rate = found.fresh / found.seconds
        size = wanted if minutes is None else min(wanted, max(1, int(rate * 60 * minutes) // batch) * batch)
        bound, least = evidence.expected_bound(law.cells, size), R.detectable_tv(size)
        limits = f"a correct sampler's bound is about TV <= {bound:.3f}"
        limits += f"; the least TV that any test can find {least:.3f}"
        tell(f"{rate:.1f} sequences a second: {size} take {size / rate / 60:.1f} minutes; {limits}")
        return size

    return until


def reach(found: Drawn, law: Law, batch: int, vary: bool, least: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a certification tested of a black box, and what it cannot see; `least`: share of copies that is found."""
    K, L, sizes = len(law.prompts), law.length, [len(b.prompts) for b in found.batches]
    prompts = f"{K} prompt{'s' * (K > 1)} of {law.prompts.shape[1]} tokens"
    calls = f"calls of {min(sizes)} to {max(sizes)} rows" if vary and batch > 1 else f"calls of {max(sizes)} rows"
    tested: tuple[str, ...] = (f"the joint law of {L} tokens behind {prompts}", f"{calls}, prompts in several orders")
    tested += (f"independence of rows {LAGS[0]} to {LAGS[-1]} apart: copies of {least:.1%} of the rows are found",)
    untested: tuple[str, ...] = ("other prompts and longer outputs", f"calls of more than {max(sizes)} rows")
    untested += () if vary and batch > 1 else ("other sizes of a call",)
    untested += ("copies of fewer rows, or of rows further apart", f"what changes after {found.n} sequences")
    return tested, (*untested, "a sampler that behaves well only with the sizes, prompts and number of this test")
