"""Time the methods of an experiment on this machine, a model and its settings at a time, beside plain decoding.

    python -m parity.tune.speed --kind discrete --cells CELL... --checkpoint manifest.json --inputs 0.npz --batch 32 \
        --out speed.json

Every method is piloted: a few rows alone. For image tokens its speed is predicted from what the experiment counted of
it and from what passes cost here, timed once over several numbers of tokens: passes x a pass of that size and batch x
what a step costs beside its pass. For texts and vectors the pilot is the prediction, in a batch the cells' own seconds.
Then the lossless methods predicted to be fastest, those that the configuration names and, of images, plain decoding
with compiled passes decode rows in turns with plain decoding, alone and in a batch (`run_duels`). Like is compared with
like: a method whose passes cannot be captured as CUDA graphs has plain decoding without them beside it, and its speed
over the captured one is a column of its own. `parity tune` is made of the same parts.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from parity.base import machine
from parity.base.command import add_arguments, note, pin_threads, run_command
from parity.base.digests import read_manifest
from parity.base.files import dump_canonical, publish, read_json
from parity.decode.shard_io import read_rows
from parity.experiment.options import KINDS, claim, needs
from parity.metrics.estimates import columns_of
from parity.metrics.tables import read_table
from parity.tune.bench import CAPTURED, Bench, Images, Variant, run_duels, try_in_memory

BEST = 3  # this many lossless methods are timed
NEAR = 1.1  # unless they are predicted to be this many times slower than plain decoding
PREDICTED, ROUGH, TIMED = "predicted", "timed roughly", "timed"  # how a speed is known: TIMED if `Variant.is_known`
SHARED = {"seed", "method", "options"}  # keys of a specification that differ within a group


@dataclass
class Counted:
    """A variant of the group, and what the experiment counted of its cells."""

    variant: Variant
    keys: list[str]  # of its cells
    spec: dict[str, Any]
    passes: float  # of an image alone; 0 except for image tokens
    shared_passes: float  # of a batch, over its rows
    seconds: float  # of a batch in the job that decoded it, over its rows
    rows: int  # of its largest batch


def read_group(kind: str, folders: list[Path]) -> list[Counted]:
    """Read the cells of a group, of which the first is plain decoding; cells of one method and options are one."""
    group: dict[str, Counted] = {}
    for folder in folders:
        spec = read_json(folder / "spec.json")
        name = dump_canonical([spec["method"], spec["options"]])
        key = folder.name.rpartition("-")[2]
        if name in group:
            group[name].keys.append(key)
            continue
        records = read_table(folder / "records.parquet")
        own = {name: spec[name] for name in ("source", "own_draft") if name in spec}
        variant = Variant(spec["method"], spec["options"], own)
        passes = 0.0
        if kind == "discrete":
            passes = float(records["nfe"].mean())
            variant.nodes = float((records["nodes"] / records["nfe"]).mean())
        shared = float((records["passes"] / records["batch"]).mean())
        seconds = float((records["batch_seconds"] / records["batch"]).mean())
        group[name] = Counted(variant, [key], spec, passes, shared, seconds, int(records["batch"].max()))
    return list(group.values())


def make_bench(kind: str, group: list[Counted], manifest: dict[str, Any], inputs: Path | None, **how: Any) -> Bench:
    """Make the bench of a group's model."""
    setting = {name: value for name, value in group[0].spec.items() if name not in SHARED}
    model = (kind, manifest, setting, read_rows(inputs) if inputs else None)
    if kind != "discrete":
        return Bench(*model, **how)
    return Images(*model, speculators={needs(kind, c.variant.method) for c in group}, **how)


def predict(bench: Bench, counted: Counted, batch: int) -> float:
    """Predict the seconds of a row of a batch by what was counted and piloted of a variant."""
    variant = counted.variant
    if not isinstance(bench, Images):
        return variant.piloted if batch == 1 else counted.seconds
    passes = counted.passes if batch == 1 else batch * counted.shared_passes
    return bench.predict(replace(variant, passes=passes), batch)


def choose_rivals(kind: str, group: list[Counted], named: list[str] | str) -> list[Counted]:
    """Choose which variants are timed in turns with plain decoding, the first of the group, by their predicted seconds:
    the best of each of the BEST lossless methods that are predicted to be fastest, and all of the methods `named`."""
    plain, *others = group
    lossless = [c for c in others if claim(kind, c.variant.method, c.variant.options) == "lossless"]
    near = [c for c in lossless if c.variant.predicted <= NEAR * plain.variant.predicted]
    best: dict[str, Counted] = {}
    for counted in sorted(near, key=lambda c: c.variant.predicted):
        best.setdefault(counted.variant.method, counted)
    fastest = list(best.values())[:BEST]
    return [c for c in others if c in fastest or named == "all" or c.variant.method in named]


def find_like(bench: Bench, group: list[Counted]) -> Counted | None:
    """Find plain decoding without CUDA graphs, piloted, and make it the `base` of those variants of a group that run so
    where plain decoding, the first, is captured; None if there are none."""
    plain = group[0]
    alike = [c.variant for c in group if c.variant.way not in (CAPTURED, "")]
    if plain.variant.way != CAPTURED or not alike:
        return None
    like = replace(plain, variant=replace(plain.variant, captures=False, seconds=[]), keys=[])
    bench.pilot(like.variant)
    like.variant.nodes = plain.variant.nodes
    for variant in alike:
        variant.base = like.variant
    return like


def compare(counted: Counted, base: Variant, timed: list[Variant], name: str) -> dict[str, Any]:
    """Make the columns of the speed `name` of a variant over `base`: the predicted one, and if it is `timed` that."""
    variant = counted.variant
    predicted = base.predicted / variant.predicted
    columns = {f"{name}_predicted": predicted, name: predicted}
    return columns | columns_of({name: variant.compare(base.seconds)}) if variant in timed else columns


def time_size(
    bench: Bench, group: list[Counted], like: Counted | None, batch: int, named: list[str] | str, seconds: float
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Predict the speed of every variant at a batch, and time those that `choose_rivals` names for about this many
    seconds, none for 0. like: of `find_like`. Yields keys of cells, and columns of their rows."""
    name = "speedup_single" if batch == 1 else "speedup"
    for counted in [*group, *([like] if like else [])]:
        counted.variant.seconds = []
        counted.variant.predicted = predict(bench, counted, batch)
    plain = group[0].variant
    rivals = [c.variant for c in choose_rivals(bench.kind, group, named)] if seconds else []
    compiled = [replace(plain, fast=True, seconds=[])] if bench.compiles and batch == 1 and seconds else []
    bases = [like.variant] if like and any(rival.base for rival in rivals) else []
    turns = [plain, *bases, *compiled, *rivals]
    timed = run_duels(bench, turns, batch, seconds) if len(turns) > 1 else []
    for counted in group:
        variant = counted.variant
        base = variant.base or plain
        columns = {**compare(counted, base, timed, name), f"{name}_how": PREDICTED, "runs_as": variant.way}
        if variant is plain:
            columns |= {name: 1.0, f"{name}_how": TIMED}
        elif variant in timed:
            columns[f"{name}_how"] = TIMED if variant.is_known(base.seconds) else ROUGH
        if variant.base is not None:
            columns |= compare(counted, plain, timed, f"{name}_over_captured")
        columns["singles" if batch == 1 else "pairs"] = len(variant.seconds)
        if batch == 1:
            columns["seconds_alone"] = median(variant.seconds) if variant.seconds else variant.piloted
        if isinstance(bench, Images):
            cost = bench.pass_seconds(variant.nodes, 1, bench.fast) / bench.pass_seconds(1, 1, bench.fast)
            columns |= {"pass_cost": cost, "step_cost": variant.step}
        yield counted.keys, columns
    for variant in compiled:
        if variant in timed:
            yield group[0].keys, columns_of({"speedup_compiled": variant.compare(plain.seconds)})


def time_group(
    bench: Bench, group: list[Counted], batch: int, named: list[str] | str, seconds: float
) -> dict[str, dict[str, Any]]:
    """Pilot the variants of a group, and predict and time their speeds alone and in a batch; return columns by key."""
    bench.decode(group[0].variant, bench.rows(0, 1))  # this first decoding is not counted: it takes longer
    for number, counted in enumerate(group, 1):
        note(f"piloting {counted.variant.name}, {number} of {len(group)}")
        nodes = counted.variant.nodes  # as the experiment counted them
        fits = try_in_memory(partial(bench.pilot, counted.variant), counted is group[0], counted.variant.name)
        counted.variant.nodes = nodes
        if not fits:
            counted.variant.piloted = float("nan")
    columns: dict[str, dict[str, Any]] = {}
    fitting = [c for c in group if c.variant.piloted > 0]
    like = find_like(bench, fitting)
    for size in sorted({1, batch}):
        for keys, found in time_size(bench, fitting, like, size, named, seconds):
            for key in keys:
                columns.setdefault(key, {}).update(found)
    return columns


def list_curves(bench: Bench) -> list[dict[str, Any]]:
    """List what passes cost on this machine: for each batch, eager and compiled, seconds over numbers of tokens."""
    costs = bench.costs.items() if isinstance(bench, Images) else ()
    return [
        {"batch": batch, "compiled": fast, "tokens": [*seconds], "seconds": [*seconds.values()]}
        for (batch, fast), seconds in costs
    ]


def main() -> None:
    """Time the group of cells of the command line, and write the file --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--named", type=json.loads, default=[], help="JSON: methods that are timed in any case, or all")
    parser.add_argument("--seconds", type=float, default=60, help="that duels take at a batch, about (%(default)s)")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--capture", choices=["auto", "off"], default="auto")
    add_arguments(parser, "cells+", "inputs?", "checkpoint", "out", "batch", "threads", "device")
    a = parser.parse_args()
    pin_threads(a.threads)
    group = read_group(a.kind, a.cells)
    how = {"compile": a.compile, "capture": a.capture, "device": a.device}
    bench = make_bench(a.kind, group, read_manifest(a.checkpoint), a.inputs, **how)
    batch = min(a.batch, group[0].rows)
    columns = time_group(bench, group, batch, a.named, a.seconds)
    origin = {"machine": machine.identify_machine(), "device": bench.device, "dtype": bench.dtype, "batch": batch}
    found = {**origin, "load": os.getloadavg()[0], "curves": list_curves(bench), "cells": columns}
    publish(a.out, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    run_command(main)
