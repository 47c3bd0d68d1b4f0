"""Find the fastest lossless method of each image model on this machine: what to set, and how much sooner images come.

    parity tune [--configfile config.yaml] [--batch 1 32] [--budget 60] [--again]

1. Time a pass of the target over 1 to 64 tokens in the middle of an image.
2. Decode a few captions with every lossless method at several sizes, on noise of their own, and count passes.
3. Predict seconds an image: passes x a pass of that size and batch x what a step costs beside its pass.
4. Decode images with the best of these and with plain decoding in turns. The fastest by the median is the choice.

The choice goes to tuned.yaml, which `image.methods: {auto: [{}]}` reads (`parity.experiment.tuned`).
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
import yaml

from parity.base import machine
from parity.base.command import one_line, pin_threads, progress
from parity.base.devices import take_device
from parity.base.errors import ConfigError, ParityError
from parity.base.files import canonical, publish
from parity.decode import loop
from parity.decode.discrete import Decoded, record
from parity.experiment import checks, pins, stand_in, tuned, weights
from parity.experiment.cells import as_list
from parity.experiment.config_overlay import located, read_experiment
from parity.experiment.options import declaration, methods, needs, option_schema, plain_method
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config, ModelSpec
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.models.discrete.load import Loaded, networks

SIZES = (16, 8, 32, 4, 64)  # nodes of a pass, about; in the order in which they are tried
# options that grow with the size, by what divides it; not `sjd_pac`'s few branches, which multiply from slot to slot
SHARES = {"window": 1, "branches": 1, "total": 1, "gamma": 4}
FEW = 4  # the least default of such an option
WIDTHS = (1, 4, 8, 16, 32, 64)  # nodes of the passes that are timed
SEED = 2**31 - 1  # of the pilot and the turns: their noise is of no image that is kept, as their ids are "tune-..."
CAPTIONS, PILOT, ROUNDS, BEST = 16, 2, 5, 3  # captions in all, and of the pilot; rounds and candidates at most
PILOT_SHARE = 0.45  # of the time, until which new pilots begin
COMPILED = 4  # images: the largest batch at which compiled passes are tried on a CPU (docs/results/performance.md)
NEAR = 1.3  # times plain decoding's predicted seconds, up to which a variant is worth a measurement
JUMP = 1.3  # ratio of two timings of plain decoding from which on the machine is too busy to tell


@dataclass
class Variant:
    """A method, its complete options, and what was counted and timed of it."""

    method: str
    options: dict[str, Any]
    fast: bool = False  # passes compiled
    passes: float = 0.0  # an image
    nodes: float = 0.0  # a pass
    step: float = 1.0  # seconds of a step for each second of a bare pass as wide
    predicted: float = 0.0  # seconds an image, at the batch at hand, as below
    seconds: list[float] = field(default_factory=list)  # an image, one a round

    @property
    def name(self) -> str:
        return f"{self.method}, compiled" if self.fast else self.method

    def times(self, plain: list[float]) -> float:
        """Times plain decoding: the median over rounds."""
        return median(p / own for p, own in zip(plain, self.seconds, strict=True))

    def row(self, plain: list[float]) -> dict[str, Any]:
        """What the table shows; numbers that were not measured are None."""
        counted = {"passes an image": round(self.passes, 1), "predicted s": round(self.predicted, 4)}
        seconds, times = (median(self.seconds), self.times(plain)) if self.seconds else (None, None)
        measured = {"s an image": seconds and round(seconds, 4), "times plain": times and round(times, 3)}
        return {"method": self.name, "options": show(self.method, self.options), **counted, **measured}


def candidates(spec: ModelSpec) -> Iterator[Variant]:
    """Every lossless variant that a model can run, plain decoding first, then all methods size by size."""
    yield Variant(plain_method("discrete"), {})
    most, known = weights.largest(spec), set()
    for size in SIZES:
        for method in methods("discrete"):
            if method == plain_method("discrete"):
                continue
            fields = option_schema("discrete", method).model_fields
            sized = {n: max(1, size // SHARES[n]) for n, f in fields.items() if n in SHARES and f.default >= FEW}
            sized = {name: min(value, most.get(name, value)) for name, value in sized.items()}
            try:
                chosen = tuned.lossless(method, {**declaration("discrete", method).EXACT_WITH, **sized}, spec)
            except ConfigError:
                continue  # lossy, or the model lacks the network that it needs
            if (name := f"{method} {canonical(chosen)}") not in known:
                known.add(name)
                yield Variant(method, chosen)


def show(method: str, chosen: Mapping[str, Any]) -> str:
    """Options that are no defaults, and those that grow with the size."""
    fields = option_schema("discrete", method).model_fields
    return ", ".join(f"{k}: {v}" for k, v in chosen.items() if k in SHARES or v != fields[k].default)


class Model:
    """A model on this machine, its captions read."""

    def __init__(self, manifest: Mapping[str, Any], spec: ModelSpec, config: Config, captions: list[str]):
        assert config.image is not None
        self.spec, self.device = spec, take_device("cuda" if machine.gpu() else "cpu", config.image.dtype)
        cuda, dtype = self.device.startswith("cuda"), getattr(torch, config.image.dtype)
        self.fast = config.compile == "on" or (config.compile == "auto" and cuda)  # as a run of the workflow has it
        self.compiles = config.compile == "auto" and not cuda  # whether compiled plain decoding is worth a look
        parts = {part for v in candidates(spec) if (part := needs("discrete", v.method))}
        self.nets = networks(manifest, ("vq", "net", *sorted(parts)), self.device, dtype)
        self.manifest, self.columns = manifest, encode(manifest, captions, self.device)
        sampling = as_list(config.image.sampling)[0].model_dump()
        self.cell = {"seed": SEED, "dtype": config.image.dtype, "sampling": sampling}
        self.costs: dict[tuple[int, bool], list[float]] = {}  # seconds of a pass by (batch, compiled), for WIDTHS

    def loaded(self, part: str, fast: bool) -> Loaded:
        """The target and the companion that a method needs: others would be fed, too."""
        nets = {name: net for name, net in self.nets.items() if name in ("vq", "net", part)}
        return Loaded(self.manifest, nets, torch.device(self.device), fast)

    def rows(self, first: int, count: int) -> loop.Rows:
        """Images number `first` and on, captions in turn."""
        numbers = np.arange(first, first + count)
        ids = np.array([f"tune-{number}" for number in numbers])
        return {"ids": ids, **{k: v[numbers % len(v)] for k, v in self.columns.items()}}

    def decode(self, variant: Variant, rows: loop.Rows) -> Decoded:
        """The rows decoded. One step before, which is not timed, compiles what is to be compiled."""
        fast = variant.fast or self.fast
        cell = {**self.cell, "method": variant.method, "options": variant.options}
        loaded = self.loaded(needs("discrete", variant.method), fast)
        start = loop.start_decoding("discrete", loaded, cell)
        if fast:
            next(start(rows, loop.noise_of(rows, loaded, cell))[2])
        return record(*start(rows, loop.noise_of(rows, loaded, cell)))

    def pass_seconds(self, nodes: float, batch: int, fast: bool = False) -> float:
        """Seconds of a pass over so many nodes of every row of a batch, in the middle of an image."""
        fast = fast or self.fast
        if (batch, fast) not in self.costs:
            widths = WIDTHS if fast == self.fast else WIDTHS[:1]  # of plain decoding alone, where it is compiled
            self.costs[batch, fast] = [self.time_pass(n, batch, fast) for n in widths]
        costs = self.costs[batch, fast]
        beyond = max(1.0, nodes / WIDTHS[-1])
        return beyond * float(np.interp(nodes, WIDTHS[: len(costs)], costs))

    @torch.inference_mode()
    def time_pass(self, nodes: int, batch: int, fast: bool) -> float:
        model = self.loaded("", fast).model(self.rows(0, batch), self.cell["sampling"])
        at = (model.length // 2 + torch.arange(nodes, device=self.device)).clamp(max=model.length - 2)
        at, seconds = at.repeat(batch, 1), [0.0]
        while len(seconds) < 5 or (sum(seconds[1:]) < 0.05 and len(seconds) < 30):  # the first compiles and warms up
            began = time.perf_counter()
            model.logits(torch.zeros_like(at), at).amax().item()  # which waits for the device
            seconds.append(time.perf_counter() - began)
        return median(seconds[2:])

    def predict(self, variant: Variant, batch: int) -> float:
        """Seconds an image."""
        cost = self.pass_seconds(variant.nodes, batch, variant.fast)
        return variant.passes * cost * variant.step / batch

    def pilot(self, variant: Variant) -> None:
        """Count a variant's passes, and time its steps, on a few captions one at a time."""
        done = [self.decode(variant, self.rows(i, 1)) for i in range(PILOT)]
        variant.passes = mean(float(d.nfe) for d in done)
        variant.nodes = sum(float(d.nodes) for d in done) / sum(float(d.nfe) for d in done)
        variant.step = min(d.seconds / d.passes for d in done) / self.pass_seconds(variant.nodes, 1)


def pilots(model: Model, batches: list[int], until: float) -> list[Variant]:
    """Variants whose passes were counted until that time, plain decoding and one size of each method at least. The
    methods that look best are tried at all sizes first."""
    every = list(candidates(model.spec))
    gains: dict[str, float] = {}

    def in_turn() -> Iterator[Variant]:
        first = [v for i, v in enumerate(every) if v.method not in {u.method for u in every[:i]}]
        yield from first
        rest = [v for v in every if v not in first]
        yield from sorted(rest, key=lambda v: gains[v.method])

    done: list[Variant] = []
    for variant in progress(in_turn(), len(every), "counting passes"):
        if time.time() > until and len(gains) == len({v.method for v in every}):
            break
        model.pilot(variant)
        done.append(variant)
        gain = min(model.predict(variant, b) / model.predict(done[0], b) for b in batches)
        gains[variant.method] = min(gain, gains.get(variant.method, gain))
    return done


def measure(model: Model, piloted: list[Variant], batch: int, until: float) -> list[Variant]:
    """Plain decoding first, then what was decoded in turns with it: the variants predicted to be fastest, as many as
    there is time for two rounds of."""
    for variant in piloted:
        variant.predicted, variant.seconds = model.predict(variant, batch), []
    plain, *others = piloted
    turns, left = [plain], until - time.time()
    if model.compiles and batch <= COMPILED:
        fast = Variant(plain.method, {}, fast=True, passes=plain.passes, nodes=plain.nodes, step=plain.step)
        fast.predicted = model.predict(fast, batch)
        turns.append(fast)
    for variant in sorted(others, key=lambda v: v.predicted)[:BEST]:
        needed = 2 * batch * sum(v.predicted for v in [*turns, variant])
        if variant.predicted < NEAR * plain.predicted and (needed < left or turns[-1].method == plain.method):
            turns.append(variant)
    begun, number = time.time(), PILOT
    while (turn := len(plain.seconds)) < 2 or (turn < ROUNDS and (time.time() - begun) * (turn + 1) / turn < left):
        print(f"batch {batch}: round {turn + 1}, {len(turns)} in turn", file=sys.stderr, flush=True)
        for variant in turns if turn % 2 == 0 else turns[::-1]:
            variant.seconds.append(model.decode(variant, model.rows(number, batch)).seconds / batch)
        number += batch
    return turns


def choose(turns: list[Variant]) -> Variant | None:
    """The fastest of those that were decoded in turns with plain decoding, the first; None if its timings jump."""
    plain = turns[0].seconds
    if max(plain) > JUMP * min(plain):
        return None
    return max(turns, key=lambda v: v.times(plain))


def tell(name: str, batch: int, entry: Mapping[str, Any]) -> str:
    """The choice in a line."""
    if entry["method"] == plain_method("discrete") and not entry["compiled"]:
        plain = f"{entry['method']}, plain decoding, {entry['seconds']:.3g} s an image"
        return f"{name}, batch {batch}: {plain}; none is faster"
    found = f"{entry['method']}: [{{{show(entry['method'], entry['options'])}}}]"
    found += " with passes compiled" if entry["compiled"] else ""
    gain = f"{entry['times']:.2f} times plain decoding, {entry['seconds']:.3g} s an image"
    settings = "image.methods: {auto: [{}]}" + (" and compile: on" if entry["compiled"] else "")
    return f"{name}, batch {batch}: {found}, {gain}. Set {settings}"


def tune(model: Model, name: str, batches: list[int], until: float, out: Path) -> None:
    """Choose for every batch of a model, print the tables, and add the choices to `out`."""
    now = time.time()
    piloted = pilots(model, batches, now + PILOT_SHARE * (until - now))
    for i, batch in enumerate(batches):
        now = time.time()
        turns = measure(model, piloted, batch, now + (until - now) / (len(batches) - i))
        plain = turns[0].seconds
        best_of = {v.method: v for v in sorted(piloted, key=lambda v: -v.predicted)}  # of each method the best
        shown = [*turns, *(v for v in best_of.values() if v.method not in {u.method for u in turns})]
        rows = [v.row(plain) for v in sorted(shown, key=lambda v: median(v.seconds or [v.predicted]))]
        print(f"\n{name}, batch {batch}, {machine.identity()}\n{pd.DataFrame(rows).to_string(index=False, na_rep='')}")
        if (best := choose(turns)) is None:
            span = f"plain decoding took {min(plain):.3g} to {max(plain):.3g} s an image"
            print(f"{span}: the machine is too busy to tell; nothing is written, and defaults stay")
            continue
        seconds, times = round(median(best.seconds), 4), round(best.times(plain), 3)
        entry = {"method": best.method, "options": best.options, "compiled": best.fast, "seconds": seconds}
        entry |= {"times": times, "table": rows}
        entries = {**tuned.read(out), tuned.key_of(name, model.spec, batch): entry}
        publish(out, yaml.safe_dump(entries, width=120, sort_keys=False).encode())
        print(tell(name, batch, entry))


def read_config(file: Path) -> Config:
    """The experiment of a file, without `auto`, which this command is to answer."""
    raw = read_experiment(file)
    if not isinstance(raw, dict) or not isinstance(raw.get("image"), dict):
        raise ParityError(f"{file}: has no section image; allowed: an experiment on image models")
    if isinstance(raw["image"].get("methods"), dict):
        raw["image"]["methods"].pop(tuned.AUTO, None)
    raw = stand_in.replaced(located(raw, lambda name: name), stand_in.make_stand_ins)
    return checks.load(pins.filled(raw, pins.pin_reader(False)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", help="images decoded at once (1, and the experiment's)")
    parser.add_argument("--budget", type=float, default=60, help="seconds that it takes, about (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what the file has")
    a = parser.parse_args()
    until = psutil.Process().create_time() + a.budget
    config = read_config(a.configfile)
    assert config.image is not None
    pin_threads(1)  # as many as the rule `decode` has
    batches = sorted({*(a.batch or [1, config.image.batch])})
    if batches[0] < 1:
        raise ParityError(f"--batch {batches[0]}: allowed: 1 or more")
    captions = read_prompts(config.image.prompts, most=checks.most_words(config))[:CAPTIONS]
    models = weights.models(config, "discrete")
    for i, (name, spec) in enumerate(models.items()):
        open_batches = []
        for batch in batches:
            entry, problem = (None, "") if a.again else tuned.find(name, spec, batch)
            if entry:
                print(f"{tell(name, batch, entry)} ({tuned.FILE}; --again measures)")
            else:
                open_batches.append(batch)
                if "ignored" in problem:
                    print(f"{name}, batch {batch}: {problem}", file=sys.stderr)
        if open_batches:
            folder = Path(f"results/checkpoints/discrete/{name}-{weights.revision(spec)}")
            raw = spec.model_dump(exclude=None if spec.source == "embedded" else {"grid"})
            model = Model(fetch.manifest("discrete", name, raw, folder), spec, config, captions)
            share = (until - time.time()) / (len(models) - i)
            tune(model, name, open_batches, time.time() + share, tuned.FILE)


if __name__ == "__main__":
    one_line(main)
