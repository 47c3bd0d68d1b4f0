"""Whether the promises held after a fault: the runs that follow, the tokens, the shards decoded twice."""

import random
import re
import time
from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.decode.records import read_shard
from parity.faults.kinds import KINDS
from parity.faults.place import Place

Tokens = dict[str, tuple[np.ndarray, np.ndarray]]
NAMED = re.compile(r"^error: (?P<path>\S.*?): .*delete (it|the file) and run again")
STEPS = 3  # lines that may be told one after another


def tokens(place: Place) -> Tokens:
    """Of every shard its ids and tokens, by its name. ParityError for one that is damaged."""
    files = sorted((place.results / "cells").rglob("shards/*.npz"))
    read = {str(f.relative_to(place.results)): read_shard(f) for f in files}
    return {name: (shard.ids, shard.tokens) for name, shard in read.items()}


def equal(one: Tokens, other: Tokens) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(a, b) for name in one for a, b in zip(one[name], other[name], strict=True)
    )


def obeyed(place: Place, line: str) -> bool:
    """Do what a line says, as a user would: delete the file that it names."""
    found = NAMED.match(line)
    path = place.work / found["path"] if found else place.work
    if not (found and path.is_file() and path.resolve().is_relative_to(place.work.resolve())):
        return False
    path.unlink()
    return True


def finished(place: Place) -> tuple[str, list[str], str]:
    """Run until done: "at once", "after a line" or "broken"; the lines that were told; why it is broken."""
    lines: list[str] = []
    for _ in range(STEPS + 1):
        done = place.run()
        if done.code == 0:
            return "after a line" if lines else "at once", lines, ""
        if done.code is None:
            return "broken", lines, "it hangs"
        if done.traceback or len(done.told) != 1:
            last = (done.text.strip().splitlines() or ["nothing"])[-1][:200]
            what = "a traceback" if done.traceback else f"{len(done.told)} lines"
            return "broken", [*lines, *done.told], f"exit code {done.code}, {what}; last: {last}"
        lines += done.told
        if not obeyed(place, done.told[0]):
            return "broken", lines, "the line names no file to delete"
    return "broken", lines, f"not finished after {STEPS} lines"


def fault(place: Place, kind: str, seed: int, undisturbed: Tokens) -> dict[str, Any]:
    """One fault and what followed. `undisturbed`: the tokens of the run that nobody disturbed."""
    begin, rng = time.monotonic(), random.Random(f"{kind} {seed}")
    did = KINDS[kind](place, rng)
    how, lines, why = ("broken", [], did["broken"]) if "broken" in did else finished(place)
    same = None
    if how != "broken":
        same, why = compared(place, undisturbed)
    twice = place.watched()
    place.clear()
    if how != "broken" and (not same or twice > 1):
        how, why = "broken", why or f"{twice} shards decoded twice"
    said = {"kind": kind, "seed": seed, **did, "finished": how, "lines": lines, "why": why, "tokens_equal": same}
    return said | {"decoded_twice": twice, "seconds": round(time.monotonic() - begin, 1)}


def compared(place: Place, undisturbed: Tokens) -> tuple[bool, str]:
    """Whether every token is what it should be, and why not."""
    try:
        same = equal(tokens(place), undisturbed)
    except ParityError as error:
        return False, str(error)
    return same, "" if same else "tokens differ"


def reference(place: Place) -> Tokens:
    """The tokens of the undisturbed run."""
    place.restore("decoded")
    return tokens(place)
