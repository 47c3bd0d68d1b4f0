"""Certify a black box: whatever turns prompts and a seed into tokens, against a distribution that is known.

    certify_sampler(sample, distribution, margin=0.05)      sample(prompts [n, P], seed) -> tokens [n, L], or `Sampled`

Prompts are drawn evenly from the distribution's, so a fault that shows after some prompts alone is seen.
"""

import math
import numbers
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
from parity_certify.distributions import Distribution
from parity_certify.errors import ParityError
from parity_certify.files import dump_canonical
from parity_certify.import_by_name import get_function_name
from parity_certify.independence import LAGS
from parity_certify.result_rows import Row
from parity_certify.seeding import check_seed

TELL_SECONDS = 5.0  # seconds between two lines of progress
MAX_REPEAT = 4  # the largest repeat of a rejection, as a multiple of n
CHANCE = 1e-9  # equal rows that are less likely than this are copies


def has_copies(
    codes: np.ndarray,
    prompts: np.ndarray,
    distribution: Distribution,
    first: np.ndarray,
    second: np.ndarray,
    unrelated: np.ndarray,
) -> bool:
    """Return whether the samples in rows `first` [m] and `second` [m] are equal too often for independent ones (P <
    CHANCE): more often than rows of this sampler's own distribution, and than `second` and `unrelated`. codes, prompts
    [n]: the cell and prompt of each row. False with fewer than ten pairs of one prompt."""
    share = np.bincount(codes, minlength=len(distribution.cells)).reshape(len(distribution.prompts), -1).astype(float)
    total = share.sum(1, keepdims=True)
    agree = ((share * (share - 1)).sum(1) / np.maximum(total * (total - 1), 1)[:, 0]).clip(0, 1)  # chance of equal rows
    pairs, controls = (prompts[a] == prompts[second[: len(a)]] for a in (first, unrelated))  # of the same prompt
    hits = int((codes[first] == codes[second])[pairs].sum())
    control_hits = int((codes[unrelated] == codes[second[: len(unrelated)]])[controls].sum())
    if pairs.sum() < 10:
        return False
    chance = max(agree[prompts[first]][pairs].mean(), min(1.0, (control_hits + 1) / (controls.sum() + 1)))
    return bool(special.bdtrc(hits - 1, pairs.sum(), chance) < CHANCE)


def check_repeats(batches: Sequence[Batch], distribution: Distribution) -> None:
    """Raise ParityError if samples are copies: of the same row of an earlier batch, or of the prompt's last row."""
    codes = np.concatenate([compute_codes(b, distribution) for b in batches])
    prompts = np.concatenate([b.prompts for b in batches])
    ends = np.cumsum([len(b.prompts) for b in batches])
    rows = np.split(np.arange(ends[-1]), ends[:-1])  # numbers of the rows of each batch
    # batches k and k + 2 have similar sizes, so few of their rows have no partner
    pairs = list(zip(rows, rows[2:] or rows[1:], strict=False))
    earlier = np.concatenate([one[: len(two)] for one, two in pairs] or [rows[0][:0]])
    later = np.concatenate([two[: len(one)] for one, two in pairs] or [rows[0][:0]])
    if has_copies(codes, prompts, distribution, earlier, later, np.roll(earlier, 1)):
        raise ParityError("sampler: the same samples under different seeds; allowed: a sampler that heeds its seed")
    order = np.argsort(prompts, kind="stable")
    if has_copies(codes, prompts, distribution, order[:-1], order[1:], order[6:]):
        raise ParityError("sampler: repeats its last sample (a cache?); allowed: independent samples")


def gather_samples(
    sample: Sample,
    distribution: Distribution,
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
    """Gather n samples of one seed: those in the folder first, then new ones, which are stored. There are fewer if
    `stop` and the e-process rejects, or at the deadline. Raises ParityError if the sampler fails.

    alpha, stop  level at which the e-process stops sampling, and whether it may
    tell         takes a line of progress every few seconds
    drawn        samples to continue, which stay as they are
    estimate     called with the samples after the first batch that is sampled now
    deadline     time.monotonic() at which sampling stops: batches are cut to what fits
    """
    drawn = drawn.copy() if drawn else Drawn(np.zeros(len(distribution.cells), dtype=np.int64))
    number = len(drawn.batches)

    limit = math.log(2 * evidence.SHARES / alpha) if stop else None
    while drawn.n < n and not drawn.stopped and (one := store.read_batch(seed, number)) is not None:
        drawn.add(one, distribution, limit)
        number += 1
    shown = time.perf_counter()
    start = shown - drawn.seconds
    read_n = drawn.n  # sequences that came from the folder

    def limit_size(size: int, planned: int) -> int:
        """Cut a batch's size to what n and the deadline allow, by the speed so far; before it is known, to 10."""
        size = min(size, n - read_n - planned)
        if deadline == math.inf:
            return size
        if not drawn.sampled:  # the speed is not measured yet
            return min(size, 10)
        return min(size, int((deadline - time.monotonic()) * drawn.sampled / drawn.seconds))

    if drawn.stopped or read_n >= n:
        return drawn
    with open_runner(sample, distribution, processes) as run:
        try:
            for one in run(plan_batches(seed, number, batch, vary, limit_size)):
                store.write_batch(seed, number, one)
                drawn.add(one, distribution, limit, time.perf_counter() - start)
                number += 1
                if estimate is not None:
                    estimate(drawn)
                    estimate = None
                if time.perf_counter() - shown > TELL_SECONDS:
                    shown = time.perf_counter()
                    remaining = (n - drawn.n) * drawn.seconds / drawn.sampled
                    tell(f"{drawn.n} of {n} sequences, about {format_duration(remaining)} left")
                if drawn.stopped:
                    break
        except KeyboardInterrupt:
            continues = "; the same command continues" if store.folder else ""
            raise KeyboardInterrupt(f"stopped after {drawn.n} of {n} sequences{continues}") from None
        except (ParityError, BrokenProcessPool):
            raise
        except (Exception, SystemExit) as error:  # a sampler may raise anything, and may end its process
            problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ParityError(f"sampler: failed after {drawn.n} sequences ({store.where}): {problem}") from error
    return drawn


def format_duration(seconds: float) -> str:
    """Write seconds as "15 s", from two minutes on as "3 minutes"."""
    return f"{max(1, seconds):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def check_settings(seeds: Any = (0, 1), **settings: Any) -> None:
    """Raise ParityError if a setting is not a number above 0, margin or alpha not below 1, or any other but a time not
    whole; None is allowed. Likewise unless the seeds are seeds (`check_seed`), each another."""
    for key, value in settings.items():
        is_share, is_time = key in ("margin", "alpha"), key in ("minutes", "budget")
        kind = numbers.Real if is_share or is_time else numbers.Integral
        if value is not None and not (
            isinstance(value, kind) and float(value) > 0 and (not is_share or float(value) < 1)
        ):
            shown = f"{value:g}" if isinstance(value, numbers.Real) else repr(value)
            limit = ", below 1" if is_share else "" if is_time else ", a whole number"
            raise ParityError(f"{key} {shown}: allowed: above 0{limit}")
    is_list = isinstance(seeds, Sequence) and not isinstance(seeds, str) and bool(seeds)
    if not is_list or len({check_seed(seed, "seeds") for seed in seeds}) < len(seeds):
        raise ParityError(f"seeds {seeds!r}: allowed: whole numbers from 0 to 2**63 - 1, each another")


def certify_sampler(
    sample: Sample,
    distribution: Distribution,
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
    """Certify a sampler: draw until the e-process rejects or n is reached; repeat a rejection on the next seed.

    n        sequences; None: as many as a perfect sampler needs for a bound below `margin`
    minutes, budget   the time for everything, in minutes or seconds: sampling stops in time, and the verdict says what
             could be seen; a repeat has what is left, at least the last third
    repeat   sequences on the next seed; None: twice those of the first, and while these do not reject twice as many
             again, up to MAX_REPEAT times n
    batch    most rows of a call, after which the evidence is looked at; `vary`: every second call has fewer, for a
             fault may depend on the number
    alpha    false alarms: the rate at which a correct sampler is rejected on the first seed
    folder   where samples are kept; a second call with the same sampler continues there
    spec     what the sampler is: a folder refuses the samples of another
    """
    check_settings(seeds, n=n, minutes=minutes, budget=budget, repeat=repeat, margin=margin, alpha=alpha)
    check_settings(batch=batch, processes=processes)
    start = time.monotonic()
    seconds = 0.95 * min(60 * (minutes or math.inf), budget or math.inf)
    store = Store(folder)
    name = name or get_function_name(sample)
    about = {
        "length": distribution.length,
        "vocab": distribution.vocab,
        "end": distribution.end,
        "prompts": distribution.prompts.tolist(),
    }
    about["distribution"] = dump_canonical([round(float(p), 9) for p in distribution.cells[:64]])
    store.check({"sampler": spec or name, "batch": batch, "vary": vary, **about})

    def round_to_batches(size: int) -> int:
        return -(-size // batch) * batch

    def make_rows(drawn: Drawn, seed: int, looks: dict[int, float] | None) -> tuple[list[Row], dict[int, float] | None]:
        """Make the rows of a seed's samples; store and return its looks, this one among them."""
        rows = evidence.make_sample_rows(drawn, distribution, seed, alpha=alpha, draws=draws, looks=looks)
        looks = None if looks is None else evidence.add_look(looks, drawn, rows)
        store.write_looks(seed, looks)
        return rows, looks

    def is_rejected(rows: list[Row]) -> bool:
        return any(r["decides"] and r["verdict"] == "rejected" for r in rows)

    def tell_estimate(drawn: Drawn) -> None:
        """Tell how many sequences fit, by the speed so far, and what can be seen with them."""
        rate = drawn.sampled / drawn.seconds
        size = target_n
        if first_end < math.inf:
            size = min(size, drawn.n + max(0, int(rate * (first_end - time.monotonic()))))
        bound = evidence.estimate_bound(distribution.cells, size)
        smallest = R.compute_detectable_tv(size)
        limits = f"if it is lossless, expect TV <= {bound:.3f}; smaller faults may be found, down to TV {smallest:.3f}"
        read_n = drawn.n - drawn.sampled
        sequences = f"{f'continues after {read_n} of ' if read_n else ''}{size} sequences"
        tell(f"{sequences}, about {format_duration((size - read_n) / rate)}: {limits}")

    miss = min(evidence.MISS, alpha)
    target_n = round_to_batches(
        n or evidence.needed(distribution.cells, margin, R.ALPHA / 2 if folder else R.ALPHA, miss)
    )
    settings: dict[str, Any] = {"batch": batch, "alpha": alpha, "vary": vary, "processes": processes, "tell": tell}
    first_end = start + 2 / 3 * seconds
    start_settings: dict[str, Any] = {"stop": True, "estimate": tell_estimate, "deadline": first_end}
    first = gather_samples(sample, distribution, seeds[0], target_n, store, **start_settings, **settings)
    check_repeats(first.batches, distribution)
    rows, _ = make_rows(first, seeds[0], store.read_looks(seeds[0]))
    samples = [first]
    copies = next(r["minimum_detectable_effect"] for r in rows if r["test"] == evidence.INDEPENDENCE)
    if len(seeds) > 1 and is_rejected(rows):
        size = round_to_batches(repeat or max(first.n, min(2 * first.n, target_n)))
        largest = MAX_REPEAT * max(first.n, target_n)
        tell(f"rejected after {first.n} sequences; again on seed {seeds[1]}, {size} sequences")
        second = None
        looks: dict[int, float] | None = store.read_looks(seeds[1]) or {}
        while True:
            shared: dict[str, Any] = {"stop": False, "drawn": second, "deadline": start + seconds}
            second = gather_samples(sample, distribution, seeds[1], size, store, **shared, **settings)
            repeated, looks = make_rows(second, seeds[1], looks)
            if repeat or second.n < size or is_rejected(repeated) or size >= largest:
                break
            size = round_to_batches(min(2 * size, largest))
            tell(f"not rejected after {second.n} sequences; goes on to {size}")
        rows += [r | {"repeat": 1} for r in repeated]
        check_repeats([*first.batches, *second.batches], distribution)
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    result = make_certificate(rows, distribution, samples, margin=margin, alpha=alpha, claim=claim, name=name)
    tested, untested = describe_scope(first, distribution, vary and batch > 1, copies)
    v = replace(result.verdict, tested=tested, untested=(*untested, *result.warnings))
    details = result.details | {"budget": budget, "seconds": time.monotonic() - start}
    return replace(result, verdict=v, details=details)


def describe_scope(
    drawn: Drawn, distribution: Distribution, vary: bool, copies: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Describe what was tested of a sampler, and what was not; `copies`: the least share of copies that is detected."""
    K, L, sizes = len(distribution.prompts), distribution.length, [len(b.prompts) for b in drawn.batches]
    prompts = f"{K} prompt{'s' * (K > 1)} of {distribution.prompts.shape[1]} tokens"
    calls = f"calls of {min(sizes)} to {max(sizes)} rows" if vary else f"calls of {max(sizes)} rows"
    tested = (
        f"the joint distribution of {L} tokens after {prompts}",
        f"{calls}, prompts in several orders",
        f"independence of rows {LAGS[0]} to {LAGS[-1]} apart: a sampler that copies {copies:.1%} of its rows, or more,"
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
