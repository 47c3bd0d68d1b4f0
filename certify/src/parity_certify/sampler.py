"""Certify a black box: whatever turns prompts and a seed into tokens, against a law that is known.

    certify_sampler(sample, law, margin=0.05)      sample(prompts [n, P], seed) -> tokens [n, L], or `Sampled`

Prompts are drawn evenly from the law's, so a fault that shows behind some prompts alone is seen.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from parity_certify import evidence
from parity_certify import result_rows as R
from parity_certify.calls import Batch, Drawn, Sample, Store, compute_codes, open_runner, plan_batches
from parity_certify.certificate import Certificate, make_certificate
from parity_certify.errors import ParityError
from parity_certify.files import dump_canonical
from parity_certify.import_by_name import get_function_name
from parity_certify.independence import LAGS
from parity_certify.laws import Law
from parity_certify.result_rows import Row

EVERY = 5.0  # seconds between two lines of progress
MOST = 4  # times the sequences that were asked for: the largest repeat of a rejection
CHANCE = 1e-9  # repeats less likely than this in independent samples are no chance


def has_copies(
    codes: np.ndarray, prompts: np.ndarray, law: Law, first: np.ndarray, second: np.ndarray, others: np.ndarray
) -> bool:
    """Whether rows `first` and `second`, numbers into codes [n], hold the same cell more often than rows of independent
    samples of this sampler's own law, and more often than `second` and `others` do."""
    share = np.bincount(codes, minlength=len(law.cells)).reshape(len(law.prompts), -1).astype(float)
    total = share.sum(1, keepdims=True)
    agree = ((share * (share - 1)).sum(1) / np.maximum(total * (total - 1), 1)[:, 0]).clip(0, 1)  # by prompt
    same, beside = (prompts[a] == prompts[second[: len(a)]] for a in (first, others))
    hits = int((codes[first] == codes[second])[same].sum())
    hits_beside = int((codes[others] == codes[second[: len(others)]])[beside].sum())
    if same.sum() < 10:
        return False
    chance = max(agree[prompts[first]][same].mean(), min(1.0, (hits_beside + 1) / (beside.sum() + 1)))
    return bool(special.bdtrc(hits - 1, same.sum(), chance) < CHANCE)


def check_repeats(batches: Sequence[Batch], law: Law) -> None:
    """ParityError for samples that are copies of others: of the same row under the seed before, or of the last row with
    the same prompt."""
    codes = np.concatenate([compute_codes(b, law) for b in batches])
    prompts = np.concatenate([b.prompts for b in batches])
    ends = np.cumsum([len(b.prompts) for b in batches])
    rows = np.split(np.arange(ends[-1]), ends[:-1])  # of each batch
    pairs = list(zip(rows, rows[2:] or rows[1:], strict=False))  # batches of alike sizes
    before = np.concatenate([one[: len(two)] for one, two in pairs] or [rows[0][:0]])
    now = np.concatenate([two[: len(one)] for one, two in pairs] or [rows[0][:0]])
    if has_copies(codes, prompts, law, before, now, np.roll(before, 1)):
        raise ParityError("sampler: the same samples under different seeds; allowed: a sampler that heeds its seed")
    order = np.argsort(prompts, kind="stable")
    if has_copies(codes, prompts, law, order[:-1], order[1:], order[6:]):
        raise ParityError("sampler: repeats its last sample (a cache?); allowed: independent samples")


def gather_samples(
    sample: Sample,
    law: Law,
    seed: int,
    n: int,
    store: Store,
    *,
    batch: int,
    alpha: float,
    stop: bool,
    processes: int,
    vary: bool,
    tell: Callable[[str], None],
    drawn: Drawn | None = None,
    estimate: Callable[[Drawn], None] | None = None,
    deadline: float = math.inf,
) -> Drawn:
    """n samples of one seed, those in the folder first; fewer if `stop` and the e-process decides.

    drawn     samples to go on with
    estimate  is called after the first batch sampled now
    deadline  time.monotonic() at which sampling stops: batches are cut to what fits
    """
    drawn = drawn or Drawn(np.zeros(len(law.cells), dtype=np.int64))
    number, limit = len(drawn.batches), n

    def add_batch(one: Batch) -> None:
        nonlocal number
        number += 1
        drawn.add(one, law)
        drawn.stopped = stop and drawn.best >= math.log(2 * evidence.SHARES / alpha)

    while drawn.n < limit and not drawn.stopped and (one := store.read_batch(seed, number)) is not None:
        add_batch(one)
    shown, before = time.perf_counter(), drawn.n
    begin = shown - drawn.seconds

    def limit_size(size: int, planned: int) -> int:
        size = min(size, limit - before - planned)
        if deadline == math.inf:
            return size
        if not drawn.fresh:  # the speed is not known
            return min(size, 10)
        return min(size, int((deadline - time.monotonic()) * drawn.fresh / drawn.seconds))

    if drawn.stopped or before >= limit:
        return drawn
    with open_runner(sample, law, processes) as run:
        try:
            for one in run(plan_batches(seed, number, batch, vary, limit_size)):
                store.write_batch(seed, number, one)
                drawn.fresh += len(one.prompts)
                drawn.seconds = time.perf_counter() - begin
                add_batch(one)
                if estimate is not None:
                    estimate(drawn)
                    estimate = None
                if time.perf_counter() - shown > EVERY:
                    shown = time.perf_counter()
                    left = (limit - drawn.n) * drawn.seconds / drawn.fresh
                    tell(f"{drawn.n} of {limit} sequences, about {format_duration(left)} left")
                if drawn.stopped:
                    break
        except KeyboardInterrupt:
            continues = "; the same command continues" if store.folder else ""
            raise KeyboardInterrupt(f"stopped after {drawn.n} of {limit} sequences{continues}") from None
        except (ParityError, BrokenProcessPool):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ParityError(f"sampler: failed after {drawn.n} sequences ({store.where}): {what}") from error
    return drawn


def format_duration(seconds: float) -> str:
    return f"{max(1, seconds):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def check_settings(**settings: float | None) -> None:
    """ParityError for sizes that are none."""
    for key, value in settings.items():
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
    """Draw until the e-process rejects or the sample is as large as was asked; repeat a rejection on the next seed.

    n        sequences; None: as many as a perfect sampler needs for a bound below `margin`
    minutes, budget   the time for everything, in minutes or seconds: sampling stops in time, and the verdict says what
             could be seen; a repeat has what is left, at least the last third
    repeat   sequences on the next seed; None: twice those of the first, and while these do not reject twice as many
             again, up to MOST times n
    batch    most rows of a call, after which the evidence is looked at; `vary`: every second call has fewer, for a
             fault may depend on the number
    alpha    false alarms: the rate at which a correct sampler is rejected on the first seed
    folder   where samples are kept; a second call with the same sampler goes on there
    spec     what the sampler is: a folder refuses the samples of another
    """
    check_settings(n=n, minutes=minutes, budget=budget, repeat=repeat, margin=margin, alpha=alpha)
    check_settings(batch=batch, processes=processes)
    begin, seconds = time.monotonic(), 0.95 * min(60 * (minutes or math.inf), budget or math.inf)
    store, name = Store(folder), name or get_function_name(sample)
    about = {"length": law.length, "vocab": law.vocab, "end": law.end, "prompts": law.prompts.tolist()}
    about["law"] = dump_canonical([round(float(p), 9) for p in law.cells[:64]])
    store.check({"sampler": spec or name, "batch": batch, "vary": vary, **about})

    def round_to_batches(size: int) -> int:
        return -(-size // batch) * batch

    def make_rows(drawn: Drawn, seed: int, looks: dict[int, float] | None) -> list[Row]:
        rows = evidence.make_sample_rows(drawn, law, seed, alpha=alpha, draws=draws, looks=looks)
        store.write_looks(seed, looks)
        return rows

    def is_rejected(rows: list[Row]) -> bool:
        return any(r["decides"] and r["verdict"] == "rejected" for r in rows)

    def tell_estimate(drawn: Drawn) -> None:
        """Tell what fits, by the speed so far, and what can be seen with it."""
        rate = drawn.fresh / drawn.seconds
        size = wanted if soon == math.inf else min(wanted, drawn.n + max(0, int(rate * (soon - time.monotonic()))))
        bound, least = evidence.estimate_bound(law.cells, size), R.compute_detectable_tv(size)
        limits = f"if it is lossless, expect TV <= {bound:.3f}; smaller faults may be found, down to TV {least:.3f}"
        before = drawn.n - drawn.fresh
        sequences = f"{f'continues after {before} of ' if before else ''}{size} sequences"
        tell(f"{sequences}, about {format_duration((size - before) / rate)}: {limits}")

    wanted = round_to_batches(n or evidence.needed(law.cells, margin, R.ALPHA / 2 if folder else R.ALPHA))
    settings: dict[str, Any] = {"batch": batch, "alpha": alpha, "vary": vary, "processes": processes, "tell": tell}
    soon = begin + 2 / 3 * seconds
    first = gather_samples(
        sample, law, seeds[0], wanted, store, stop=True, estimate=tell_estimate, deadline=soon, **settings
    )
    check_repeats(first.batches, law)
    rows, samples = make_rows(first, seeds[0], store.read_looks(seeds[0])), [first]
    least = next(r["minimum_detectable_effect"] for r in rows if r["test"] == evidence.INDEPENDENCE)
    if len(seeds) > 1 and is_rejected(rows):
        size, most = round_to_batches(repeat or max(first.n, min(2 * first.n, wanted))), MOST * max(first.n, wanted)
        tell(f"rejected after {first.n} sequences; again on seed {seeds[1]}, {size} sequences")
        second, looks, again = None, store.read_looks(seeds[1]) or {}, rows
        while True:
            shared: dict[str, Any] = {"stop": False, "drawn": second, "deadline": begin + seconds}
            second = gather_samples(sample, law, seeds[1], size, store, **shared, **settings)
            again = make_rows(second, seeds[1], looks)
            if repeat or second.n < size or is_rejected(again) or size >= most:
                break
            size = round_to_batches(min(2 * size, most))
            tell(f"not rejected after {second.n} sequences; goes on to {size}")
        rows += [r | {"repeat": 1} for r in again]
        check_repeats([*first.batches, *second.batches], law)
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    result = make_certificate(rows, law, samples, margin=margin, alpha=alpha, claim=claim, name=name)
    tested, untested = describe_scope(first, law, vary and batch > 1, least)
    result.verdict = replace(result.verdict, tested=tested, untested=(*untested, *result.warnings))
    result.beside |= {"budget": budget, "seconds": time.monotonic() - begin}
    return result


def describe_scope(drawn: Drawn, law: Law, vary: bool, least: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a certification tested of a black box, and what it cannot see; `least`: share of copies that is detected."""
    K, L, sizes = len(law.prompts), law.length, [len(b.prompts) for b in drawn.batches]
    prompts = f"{K} prompt{'s' * (K > 1)} of {law.prompts.shape[1]} tokens"
    calls = f"calls of {min(sizes)} to {max(sizes)} rows" if vary else f"calls of {max(sizes)} rows"
    tested = (
        f"the joint law of {L} tokens behind {prompts}",
        f"{calls}, prompts in several orders",
        f"independence of rows {LAGS[0]} to {LAGS[-1]} apart: a sampler that copies {least:.1%} of its rows, or more,"
        " is detected",
    )
    untested = (
        "other prompts and longer outputs",
        f"calls of more than {max(sizes)} rows",
        *(() if vary else ("other sizes of a call",)),
        "copies of fewer rows, or of rows further apart",
        f"what changes after {drawn.n} sequences",
        "a sampler that behaves well only with the sizes, prompts and number of this test",
    )
    return tested, untested
