"""What can happen to a run: each kind is a function of the place and of random numbers that does it.

It says what it did: the `moment` in seconds since the run began, `what` it hit, and how the disturbed run ended.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from parity.faults.place import DECODE, WHOLE, Ended, Place, Run, killed

Did = dict[str, Any]
DAY = 86_400
AGAIN = 4  # times a run is begun that has ended before the moment of its fault
APART = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]  # mounts that nobody else sees
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
FULL = (
    'mkdir ../kept && mount --bind results ../kept && mount -t tmpfs -o size="$1" none results &&'
    ' cp -a ../kept/. results/ && shift && { "$@"; code=$?; find ../kept -mindepth 1 -delete;'
    " cp -a results/. ../kept/; exit $code; }"
)


def said(run: Ended) -> Did:
    return {"code": run.code, "told": run.told, "traceback": run.traceback}


def left_to_do(place: Place, rng: random.Random) -> None:
    """Mostly everything from decoding on is still to be made; else some files of a finished run."""
    if rng.random() < 0.7 or not (place.folder / "finished").exists():
        place.goal = DECODE
        place.restore("ready")
        return
    place.goal = WHOLE
    place.restore("finished")
    made = sorted(
        p for p in place.results.rglob("*.*") if p.is_file() and not p.is_relative_to(place.results / "store")
    )
    for path in rng.sample([p for p in made if ".snakemake" not in p.parts and "checkpoints" not in p.parts], 2):
        path.unlink()


def at_random(place: Place, rng: random.Random) -> tuple[Run, float]:
    """A run at a random moment of its time. One that has ended by then was faster than the last one: begin again."""
    share = rng.uniform(0.2, 1.0)
    for _ in range(AGAIN):
        left_to_do(place, rng)
        run = place.start()
        passed = run.until(share * min(place.seconds, 60))
        if run.alive():
            break
        place.took(passed)
    return run, round(passed, 2)


def kill_worker(place: Place, rng: random.Random) -> Did:
    """SIGKILL of one process of the run, Snakemake aside."""
    run, moment = at_random(place, rng)
    hit = 0
    while run.alive() and not hit:
        others = [pid for pid in place.processes() if pid != run.process.pid]
        hit = next((pid for pid in rng.sample(others, len(others)) if killed(pid)), 0)
        time.sleep(0.02)
    return {"moment": moment, "what": "a worker" if hit else "none was left"} | said(run.ended())


def kill_snakemake(place: Place, rng: random.Random) -> Did:
    """SIGKILL of Snakemake alone: its jobs go on while the next run begins."""
    run, moment = at_random(place, rng)
    killed(run.process.pid)
    return {"moment": moment, "what": "Snakemake"} | said(run.ended())


def kill_all(place: Place, rng: random.Random) -> Did:
    """SIGKILL of all, in a random order."""
    run, moment = at_random(place, rng)
    every = place.processes()
    for pid in rng.sample(every, len(every)):
        killed(pid)
    place.clear()
    return {"moment": moment, "what": f"{len(every)} processes"} | said(run.ended())


def terminate(place: Place, rng: random.Random) -> Did:
    """SIGTERM, SIGINT or SIGHUP to Snakemake alone, or to its whole group, as a scheduler or a terminal sends it."""
    run, moment = at_random(place, rng)
    number, group = rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]), rng.random() < 0.5
    if run.alive():
        (os.killpg if group else os.kill)(run.process.pid, number)
    return {"moment": moment, "what": f"{number.name} to {'all' if group else 'Snakemake'}"} | said(run.ended())


def limited(place: Place, rng: random.Random, letter: str, low: float, high: float, unit: str) -> Did:
    left_to_do(place, rng)
    most = round(low * (high / low) ** rng.random())
    run = place.start("sh", "-c", f'ulimit -{letter} {most}; exec "$@"', "sh")
    return {"moment": 0, "what": f"{most} {unit}"} | said(run.ended())


def file_size(place: Place, rng: random.Random) -> Did:
    """No file may grow beyond a size, as under a quota (RLIMIT_FSIZE)."""
    return limited(place, rng, "f", 1, 256, "blocks of 512 bytes a file")


def memory(place: Place, rng: random.Random) -> Did:
    """No process may take more address space than so much (RLIMIT_AS)."""
    return limited(place, rng, "v", 200_000, 8_000_000, "KB of address space")


@cache
def mounts() -> bool:
    """Whether this user may mount what nobody else sees."""
    try:
        done = subprocess.run([*APART, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def disk_full(place: Place, rng: random.Random) -> Did:
    """The results lie on a disk with little room (a tmpfs of the run's own)."""
    left_to_do(place, rng)
    held = sum(-(-p.lstat().st_size // 4096) * 4 + 4 for p in place.results.rglob("*"))
    room = held + round(4 * 200 ** rng.random())
    run = place.start(*APART, "sh", "-c", FULL, "sh", f"{room}k")
    done = said(run.ended())
    place.watched()  # what was copied is counted anew
    (place.folder / "kept").rmdir()
    return {"moment": 0, "what": f"{room - held} KB of room"} | done


def read_only(place: Place, rng: random.Random) -> Did:
    """A folder cannot be written: root may write whatever modes say, so it is mounted read-only for the run alone."""
    left_to_do(place, rng)
    folders = sorted(p for p in (place.results, place.work / ".snakemake", *place.results.rglob("*")) if p.is_dir())
    chosen = rng.choice([f for f in folders if not f.is_symlink()])
    run = place.start(*APART, "sh", "-c", READ_ONLY, "sh", str(chosen))
    return {"moment": 0, "what": str(chosen.relative_to(place.work))} | said(run.ended())


def clock(place: Place, rng: random.Random) -> Did:
    """Times of files are of another clock: all or some of them long ago, yesterday, tomorrow or in ten years."""
    left_to_do(place, rng)
    files = sorted(p for p in place.results.rglob("*") if p.is_file())
    chosen = files if rng.random() < 0.3 else rng.sample(files, rng.randint(1, len(files)))
    shift = rng.choice([-DAY, DAY, -20 * 365 * DAY, 3650 * DAY])
    for path in chosen:
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + shift * 10**9))
    return {"moment": 0, "what": f"{len(chosen)} of {len(files)} files, {shift // DAY} days"}


def damaged(place: Place, rng: random.Random, how: Callable[[bytes], bytes]) -> Did:
    """A file of a finished run, of a random kind, with its bytes changed in place, as a program that writes does."""
    place.goal = WHOLE
    place.restore("finished")
    kinds: dict[str, list[Path]] = {}
    for path in sorted(p for p in place.results.rglob("*") if p.is_file() and p.stat().st_size):
        kinds.setdefault(kind_of(path.relative_to(place.results)), []).append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    with path.open("r+b") as stream:  # in place: a hard link is damaged too
        data = how(stream.read())
        stream.seek(0)
        stream.write(data)
        stream.truncate()
    figures = sorted((place.results / "cells").rglob("metrics.json"))
    again = next((f for f in figures if f.parent in path.parents), rng.choice(figures))
    if rng.random() < 0.7:  # so that files of its cell are read once more
        again.unlink(missing_ok=True)
    return {"moment": 0, "what": str(path.relative_to(place.work))}


def kind_of(path: Path) -> str:
    """Files alike: names without keys and numbers, in the same top folder."""
    return f"{path.parts[0]}/{re.sub(r'[0-9a-f]{8,}|[0-9]+', '', path.name) if path.parts[0][0] != '.' else ''}"


def truncate(place: Place, rng: random.Random) -> Did:
    """A file of the results is cut off."""
    return damaged(place, rng, lambda data: data[: rng.randrange(1, max(2, len(data)))])


def flip(place: Place, rng: random.Random) -> Did:
    """One bit of a file of the results is another."""

    def changed(data: bytes) -> bytes:
        bit = rng.randrange(8 * len(data))
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    return damaged(place, rng, changed)


def empty(place: Place, rng: random.Random) -> Did:
    """A file of the results is empty."""
    return damaged(place, rng, lambda data: b"")


def two_runs(place: Place, rng: random.Random) -> Did:
    """A second run is started while the first one goes on: it must be refused in one line, the first one finish."""
    first, moment = at_random(place, rng)
    second = place.start().ended()
    done = first.ended()
    refused = second.code == 1 and len(second.told) == 1 and not second.traceback
    did = {"moment": moment, "what": "refused" if refused else "began"} | said(second)
    kept = done.code == 0 and (refused or second.code == 0)
    return did if kept else did | {"broken": f"the first ended with {done.code}, the second with {second.code}"}


KINDS: dict[str, Callable[[Place, random.Random], Did]] = {
    "kill-worker": kill_worker,
    "kill-snakemake": kill_snakemake,
    "kill-all": kill_all,
    "terminate": terminate,
    "file-size": file_size,
    "disk-full": disk_full,
    "memory": memory,
    "read-only": read_only,
    "clock": clock,
    "truncate": truncate,
    "flip": flip,
    "empty": empty,
    "two-runs": two_runs,
}
MOUNTING = ("disk-full", "read-only")
