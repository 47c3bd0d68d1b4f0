"""Interrupt a small run again and again, and tell whether every promise held.

python -m parity.faults --minutes 30            each kind of fault in turn, for half an hour
python -m parity.faults --faults 100 --seed 7   a hundred; the first has seed 7, the next 8, ...
python -m parity.faults --only flip --seed 23 --faults 1 --out again.jsonl      that one again, to look at it

Every fault is a line of --out, with its kind, seed, moment and what was told; one that is there already is not run
again. The exit code is 1 if a promise broke. Kinds that need mounts (root, or user namespaces) are left out elsewhere.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.base import forks
from parity.base.command import one_line
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.base.machine import use_package
from parity.experiment.sources import ROOT, STATISTICS
from parity.faults.kinds import KINDS, MOUNTING, mounts
from parity.faults.place import EXPERIMENTS, Place, snakefile
from parity.faults.verdict import fault, reference

COLUMNS = ("kind", "faults", "at once", "after a line", "broken", "tokens equal", "decoded twice", "seconds a fault")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, help="begin no fault after so many (30, or any time if --faults is given)")
    p.add_argument("--faults", type=int, help="how many; without it as many as the minutes allow")
    p.add_argument("--seed", type=int, default=0, help="of the first fault (0)")
    p.add_argument("--only", nargs="+", choices=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    p.add_argument("--out", type=Path, default=Path("results/faults.jsonl"), help="a line of JSON each")
    p.add_argument(
        "--folder", type=Path, help="kept, with the undisturbed run, for the next time; else a temporary one"
    )
    return p


def asked(a: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """(kind, seed) of every fault that was asked for: each kind in turn, on each experiment in turn."""
    able = [k for k in a.only or KINDS if k not in MOUNTING or mounts()]
    if not able:
        raise ParityError(f"--only {' '.join(a.only)}: needs mounts of one's own; allowed: as root, or others")
    seed, end = a.seed, a.seed + a.faults if a.faults is not None else None
    while end is None or seed < end:
        yield able[seed % len(able)], seed
        seed += 1


def kept(file: Path) -> list[dict[str, Any]]:
    """What earlier commands found; a line that was cut off is not there."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def warm() -> None:
    """Begin what jobs of undisturbed runs fork from, in the environment that Snakemake will give them."""
    before = os.environ.get("PATH", "")
    use_package(ROOT, STATISTICS)
    forks.begin()
    os.environ["PATH"] = before  # each Snakemake puts its own in front


def campaign(a: argparse.Namespace, folder: Path, say: Any) -> list[dict[str, Any]]:
    """Every fault, those of earlier commands too."""
    found, begin = kept(a.out), time.monotonic()
    minutes = a.minutes if a.minutes is not None else 30 if a.faults is None else float("inf")
    known = {(f["kind"], f["seed"]) for f in found}
    places, undisturbed = [Place(folder / name, snakefile(), experiment=name) for name in EXPERIMENTS], []
    warm()
    for place in places:
        place.prepare()
        undisturbed.append(reference(place))
    a.out.parent.mkdir(parents=True, exist_ok=True)
    if a.out.exists() and not a.out.read_bytes().endswith(b"\n"):
        publish(a.out, a.out.read_bytes() + b"\n")
    for kind, seed in asked(a):
        if time.monotonic() - begin > 60 * minutes:
            break
        if (kind, seed) in known:
            continue
        say(found, f"{kind} {seed}")
        which = seed // len(KINDS) % len(places)
        of = {"experiment": places[which].experiment}
        found.append(of | fault(places[which], kind, seed, undisturbed[which]))
        with a.out.open("a", encoding="utf-8") as stream:
            print(json.dumps(found[-1]), file=stream)
        if found[-1]["finished"] == "broken":
            say(found, f"{kind} {seed}", found[-1]["why"])
    return found


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table: a row a kind, and one for all."""
    table = []
    for name in [*KINDS, "all"]:
        own = [f for f in found if name in ("all", f["kind"])]
        ways = [sum(f["finished"] == way for f in own) for way in ("at once", "after a line", "broken")]
        same, twice = sum(f["tokens_equal"] is True for f in own), max((f["decoded_twice"] for f in own), default=0)
        seconds = sum(f["seconds"] for f in own) / max(1, len(own))
        if own:
            table.append((name, *map(str, (len(own), *ways, same)), f"{twice} at most", f"{seconds:.1f}"))
    return table


def main() -> None:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table

    a = parser().parse_args()
    console, begin = Console(highlight=False, markup=False, emoji=False), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parity-faults-") as folder, Status("the undisturbed run") as status:

        def say(found: list[dict[str, Any]], now: str, broken: str = "") -> None:
            wrong = sum(f["finished"] == "broken" for f in found)
            minutes = (time.monotonic() - begin) / 60
            status.update(f"{len(found)} faults, {wrong} broken, {minutes:.0f} minutes; {now}")
            if broken:
                console.print(f"broken: {now}: {broken}", soft_wrap=True)

        found = campaign(a, (a.folder or Path(folder)).absolute(), say)
    table = Table(*COLUMNS)
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    console.print(f"Each fault: {a.out}")
    if any(f["finished"] == "broken" for f in found):
        raise SystemExit(1)


if __name__ == "__main__":
    one_line(main)
