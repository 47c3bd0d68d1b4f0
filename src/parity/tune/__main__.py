"""Find the fastest lossless method of each model on this machine: what to set, and how much sooner a result comes.

    parity tune [image text continuous] [--configfile config.yaml] [--batch 1 32] [--budget 60] [--again]

1. Pilot: decode a few rows with every lossless method at several sizes, on noise of their own. For image tokens passes
   are counted, and a pass of the target is timed over 1 to 64 tokens.
2. Predict seconds a row at a batch. For image tokens: passes x a pass of that size and batch x what a step costs beside
   its pass; for text and vectors: the seconds of the pilot.
3. Decode rows with the best of these in turns with plain decoding, as the rule `speed` of an experiment does. The
   fastest is the choice.

The choice goes to tuned.yaml, which `methods: {auto: [{}]}` reads (`parity.experiment.tuned`).
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml

from parity.base import machine
from parity.base.command import add_own_device, pin_threads, progress, run_command
from parity.base.devices import check
from parity.base.errors import ConfigError, ParityError
from parity.base.files import publish
from parity.experiment import checks, tuned
from parity.experiment.caption_cleaning import check_prompts
from parity.experiment.cells import captions, kinds, list_text_tasks
from parity.experiment.checks import read_config
from parity.experiment.options import (
    KINDS,
    declaration,
    find_plain_method,
    list_bounds,
    make_option_schema,
    make_plain_options,
    methods,
    needs,
)
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config
from parity.experiment.tuned import Case
from parity.experiment.weights import list_option_sizes
from parity.inputs import tasks
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.tune.bench import Bench, Images, Variant, run_duels, try_in_memory

SIZES = (16, 8, 12, 32, 4, 64)  # variants evaluate about this many positions a pass; they are tried in this order
# By kind the options that grow with the size of a pass, and what divides the size. `sjd_pac`'s branches do not grow.
SHARES = {
    "discrete": {"window": 1, "branches": 1, "total": 1, "gamma": 4},
    "anysubset": {"window": 1, "k": 2},
    "continuous": {"window": 2, "ahead": 1, "gamma": 4},
}
FEW = 4  # an option whose default is smaller does not grow
BEST = 2  # this many candidates are timed beside plain decoding
CAPTIONS = 16  # this many captions are decoded in turn
PILOT_SHARE = 0.2  # new pilots begin in this share of the time
NEAR = 1.3  # a variant is timed if it is predicted to take at most NEAR times plain decoding's seconds
JUMP = 1.3  # if timings of plain decoding differ by this factor, the machine is too busy to tell
ROW = {"discrete": "an image", "anysubset": "a text", "continuous": "an image"}
Timed = tuple[Case, list[Variant], list[dict[str, Any]]]
PASSES = {"discrete": "passes", "anysubset": "passes", "continuous": "calls in sequence"}


def list_candidates(case: Case) -> list[Variant]:
    """List every lossless variant that a model can run, each once: plain decoding, then all methods size by size."""
    kind, shares, lengths = case.kind, SHARES[case.kind], list_option_sizes(case.spec)
    found = [(find_plain_method(kind), make_plain_options(kind))]
    for size in SIZES:
        for method in methods(kind):
            bounds = list_bounds(kind, method, lengths)
            fields = make_option_schema(kind, method).model_fields
            sized = {n: max(2, size // shares[n]) for n, f in fields.items() if n in shares and f.default >= FEW}
            sized = {name: min(value, bounds.get(name, value)) for name, value in sized.items()}
            try:
                sized = {**declaration(kind, method).EXACT_WITH, **sized}
                chosen = tuned.complete_lossless(kind, method, sized, case.spec)
            except ConfigError:
                continue  # the variant is lossy, or the model lacks a network that it needs
            if (method, chosen) not in found:
                found.append((method, chosen))
    return [Variant(method, chosen) for method, chosen in found]


def write_options(kind: str, method: str, chosen: Mapping[str, Any]) -> str:
    """Write a method's options as text: those that are no defaults, and those that grow with the size of a pass."""
    fields = make_option_schema(kind, method).model_fields
    return ", ".join(f"{k}: {v}" for k, v in chosen.items() if k in SHARES[kind] or v != fields[k].default)


def make_row(kind: str, variant: Variant, plain: list[float]) -> dict[str, Any]:
    """Make a variant's row of the printed table, from its counts and times; numbers that were not measured are None.
    plain: seconds a row of plain decoding, by round."""
    counted = {PASSES[kind]: round(variant.passes, 1), "predicted s": round(variant.predicted, 4)}
    seconds, times = (median(variant.seconds), variant.times(plain)) if variant.seconds else (None, None)
    measured = {f"s {ROW[kind]}": seconds and round(seconds, 4), "times plain": times and round(times, 3)}
    options = write_options(kind, variant.method, variant.options)
    return {"method": variant.name, "options": options, **counted, **measured}


def run_pilots(bench: Bench, variants: list[Variant], batches: list[int], until: float) -> list[Variant]:
    """Pilot the variants until the time `until`, plain decoding and one size of each method at least, further sizes of
    the most promising methods first; returns those that were decoded, with counts and times in them. A variant that
    needs too much memory is left out."""
    gains: dict[str, float] = {}

    def order_variants() -> Iterator[Variant]:
        """Yield the first size of each method, then the others by their method's gain, the best first."""
        first_sizes = [v for i, v in enumerate(variants) if v.method not in {u.method for u in variants[:i]}]
        yield from first_sizes
        other_sizes = [v for v in variants if v not in first_sizes]
        yield from sorted(other_sizes, key=lambda v: gains[v.method])

    piloted: list[Variant] = []
    bench.decode(variants[0], bench.rows(0, 1))  # this first decoding is not counted: it takes longer
    for variant in progress(order_variants(), len(variants), "counting passes"):
        if time.time() > until and len(gains) == len({v.method for v in variants}):
            break
        if not try_in_memory(partial(bench.pilot, variant), variant is variants[0], variant.name):
            gains.setdefault(variant.method, inf)
            continue
        piloted.append(variant)
        gain = min(bench.predict(variant, b) / bench.predict(piloted[0], b) for b in batches)
        gains[variant.method] = min(gain, gains.get(variant.method, gain))
    return piloted


def measure(bench: Bench, piloted: list[Variant], batch: int, until: float) -> list[Variant]:
    """Time variants in turns with plain decoding until about the time `until`; returns them, plain decoding first. They
    are those predicted to be fastest, also with compiled passes: the first however little time there is, for without it
    plain decoding would be chosen untried, and as many more as there is time for."""
    eager = [replace(variant, seconds=[]) for variant in piloted]
    compiled = [replace(variant, fast=True, seconds=[]) for variant in eager] if bench.compiles else []
    for variant in (*eager, *compiled):
        variant.predicted = bench.predict(variant, batch)
    plain, *rest = eager
    turns = [plain]
    remaining = until - time.time()
    for variant in [*compiled[:1], *sorted([*rest, *compiled[1:]], key=lambda v: v.predicted)[:BEST]]:
        needed = 2 * batch * sum(v.predicted for v in [*turns, variant])
        is_first = all(v.method == plain.method for v in turns)
        if variant.predicted < NEAR * plain.predicted and (needed < remaining or is_first):
            turns.append(variant)
    return run_duels(bench, turns, batch, until - time.time())


def choose(turns: list[Variant]) -> Variant | None:
    """Choose the fastest of the variants timed in turns, of which plain decoding is the first; None if its timings
    differ by more than JUMP times, a tenth at either end aside, so that the machine is too busy to tell."""
    plain = turns[0].seconds
    low, high = np.quantile(plain, [0.1, 0.9])
    if high > JUMP * low:
        return None
    return max(turns, key=lambda v: v.times(plain))


def describe_choice(case: Case, entry: Mapping[str, Any]) -> str:
    """Describe a choice, an entry of tuned.yaml, in a line: the method, its gain, and what to set."""
    kind = case.kind
    label = f"{case.model}, batch {case.batch}"
    unit = ROW[case.kind]
    if entry["method"] == find_plain_method(kind) and not entry["compiled"]:
        return f"{label}: {entry['method']}, plain decoding, {entry['seconds']:.3g} s {unit}; none is faster"
    choice = f"{entry['method']}: [{{{write_options(kind, entry['method'], entry['options'])}}}]"
    choice += " with passes compiled" if entry["compiled"] else ""
    gain = f"{entry['times']:.2f} times plain decoding, {entry['seconds']:.3g} s {unit}"
    settings = f"{KINDS[kind]}.methods: {{auto: [{{}}]}}" + (" and compile: on" if entry["compiled"] else "")
    return f"{label}: {choice}, {gain}. Set {settings}"


def time_cases(bench: Bench, cases: list[Case], until: float) -> Iterator[Timed]:
    """Pilot and time the variants of a model, the first case's, until the time `until`. Yields for each batch its case,
    the variants that were timed in turns (plain decoding first), and a table's rows: these, and the best predicted of
    each other method."""
    start = time.time()
    batches = [case.batch for case in cases]
    piloted = run_pilots(bench, list_candidates(cases[0]), batches, start + PILOT_SHARE * (until - start))
    for i, case in enumerate(cases):
        start = time.time()
        turns = measure(bench, piloted, case.batch, start + (until - start) / (len(cases) - i))
        rest = [replace(v, predicted=bench.predict(v, case.batch), seconds=[]) for v in piloted]
        best_of = {v.method: v for v in sorted(rest, key=lambda v: -v.predicted)}
        shown = [*turns, *(v for v in best_of.values() if v.method not in {u.method for u in turns})]
        shown.sort(key=lambda v: median(v.seconds or [v.predicted]))
        yield case, turns, [make_row(case.kind, v, turns[0].seconds) for v in shown]


def tune(bench: Bench, cases: list[Case], until: float, out: Path) -> None:
    """Choose the fastest variant for every batch (case) of a model until the time `until`, print the tables, and write
    the choices into the file `out`, unless the machine is too busy to tell."""
    for case, turns, rows in time_cases(bench, cases, until):
        plain = turns[0].seconds
        table = pd.DataFrame(rows).to_string(index=False, na_rep="")
        print(f"\n{case.model}, batch {case.batch}, {machine.identify_machine()}\n{table}")
        if (best := choose(turns)) is None:
            span = f"plain decoding took {min(plain):.3g} to {max(plain):.3g} s {ROW[case.kind]}"
            print(f"{span}: the machine is too busy to tell; nothing is written, and defaults stay")
            continue
        seconds, times = round(median(best.seconds), 4), round(best.times(plain), 3)
        entry = {"method": best.method, "options": best.options, "compiled": best.fast, "seconds": seconds}
        entry |= {"times": times, "table": rows}
        entries = {**tuned.read(out), case.key: entry}
        publish(out, yaml.safe_dump(entries, width=120, sort_keys=False).encode())
        print(describe_choice(case, entry), flush=True)


def make_bench(case: Case, manifest: dict[str, Any], config: Config, device: str) -> Bench:
    """Make the bench of a case: it decodes the captions of the experiment, the rows of its first task, or images of a
    continuous model."""
    how: dict[str, Any] = {"compile": config.compile, "capture": config.capture, "device": device}
    model = (case.kind, manifest, case.setting)
    if case.kind == "continuous":
        return Bench(*model, **how)
    if case.kind == "anysubset":
        spec = next(t for t in list_text_tasks(config) if t["key"] == case.setting["task"])
        task = tasks.build(spec["kind"], spec["settings"], tasks.load_vocabulary(manifest))
        return Bench(*model, {name: getattr(task, name) for name in ("tokens", "known", "end")}, **how)
    assert config.image is not None
    texts = read_prompts(config.image.prompts, max_words=checks.count_allowed_words(config))[:CAPTIONS]
    check_prompts(texts, case.spec, f"image.prompts.file = {config.image.prompts.file!r}: ")
    speculators = {needs(case.kind, variant.method) for variant in list_candidates(case)}
    given = {"captions": np.array(texts), **encode(manifest, texts, device)}
    return Images(*model, given, speculators=speculators, **how)


def main() -> None:
    """Tune every model of the chosen sections, except for cases that tuned.yaml has unless `--again` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="of the experiment (those with `auto`; if none has it, all)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", help="rows decoded at once (1, and the experiment's)")
    parser.add_argument("--budget", type=float, default=60, help="seconds that a model takes, about (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what the file has")
    add_own_device(parser)
    a = parser.parse_args()
    check(a.device, "float32")
    until = psutil.Process().create_time() + a.budget
    config, auto = read_config(a.configfile)
    sections = {KINDS[kind]: kind for kind in kinds(config)}
    if unknown := [name for name in a.sections if name not in sections]:
        raise ParityError(f"{unknown[0]}: {a.configfile} has no such section; allowed: {', '.join(sections)}")
    if a.batch and min(a.batch) < 1:
        raise ParityError(f"--batch {min(a.batch)}: allowed: 1 or more")
    pin_threads(1)  # the rule `decode` has one thread, too
    for kind in [sections[name] for name in a.sections] or auto or kinds(config):
        for case in tuned.list_cases(config, kind):
            cases = [case._replace(batch=batch) for batch in sorted({*(a.batch or [1, case.batch])})]
            if todo := [case for case in cases if a.again or not is_answered(case)]:
                raw = case.spec.model_dump(exclude=None if case.spec.source == "embedded" else {"grid"})
                read = captions(config, kind)
                raw |= {"captions": read.model_dump()} if read else {}
                folder = Path(f"results/checkpoints/{kind}/{case.model}-{case.setting['revision']}")
                bench = make_bench(case, fetch.make_manifest(kind, case.model, raw, folder), config, a.device)
                tune(bench, todo, until, tuned.FILE)
                until = time.time() + a.budget


def is_answered(case: Case) -> bool:
    """Return whether tuned.yaml has a valid entry for the case. Prints the entry, or why it is ignored."""
    entry, problem = tuned.find(case)
    if entry:
        print(f"{describe_choice(case, entry)} ({tuned.FILE}; --again measures)")
    elif "ignored" in problem:
        print(f"{case.model}, batch {case.batch}: {problem}", file=sys.stderr)
    return entry is not None


if __name__ == "__main__":
    run_command(main)
