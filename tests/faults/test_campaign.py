"""A short campaign of faults, and that a broken promise is seen."""

import json
import random
import sys

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.decode.records import NEEDED, write_shard
from parity.faults import __main__ as command
from parity.faults import kinds, verdict
from parity.faults.place import Ended, Place, Watch


@pytest.fixture
def place(tmp_path):
    """A place whose run leaves one shard, without Snakemake."""
    return Place(tmp_path, tmp_path)


def shard(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_shard(path, {name: np.full(2, value) for name in NEEDED}, {})


def ended(monkeypatch, place, *runs):
    """The runs that follow a fault, one after another."""
    waiting = list(runs)
    monkeypatch.setattr(Place, "run", lambda self: waiting.pop(0))
    return waiting


FINE = Ended(0, "", 1.0)
LINE = "  error: results/a.json: damaged (cut); delete it and run again\n"


def test_a_run_that_tells_one_line_is_obeyed_and_finishes(monkeypatch, place):
    file = place.results / "a.json"
    file.parent.mkdir(parents=True)
    file.touch()
    ended(monkeypatch, place, Ended(1, f"FAILED it\n{LINE}FAILED other\n{LINE}", 1.0), FINE)
    assert verdict.finished(place) == ("after a line", [LINE.strip()], "") and not file.exists()


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "0 lines"),
        (LINE + "error: another\n", "2 lines"),
        (LINE + "Traceback (most recent call last):\n", "a traceback"),
        (LINE, "names no file"),
        ("error: ../../a.json: damaged; delete it and run again\n", "names no file"),
    ],
)
def test_anything_but_one_line_that_can_be_obeyed_breaks_the_promise(monkeypatch, place, text, why):
    ended(monkeypatch, place, Ended(1, text, 1.0), FINE)
    how, _, said = verdict.finished(place)
    assert how == "broken" and why in said


def test_a_run_that_hangs_and_one_that_never_finishes_are_broken(monkeypatch, place):
    ended(monkeypatch, place, Ended(None, "", 300.0))
    assert verdict.finished(place)[::2] == ("broken", "it hangs")
    monkeypatch.setattr(verdict, "obeyed", lambda *_: True)
    ended(monkeypatch, place, *[Ended(1, LINE, 1.0)] * 9)
    assert verdict.finished(place)[0] == "broken"


@pytest.mark.parametrize("broken", ["", "tokens", "missing", "damaged", "twice"])
def test_a_fault_that_changes_tokens_or_decodes_twice_is_broken(monkeypatch, place, broken):
    """The disturbed run is nothing, the next one leaves what it should, or not."""
    shard(place.results / "cells/a/shards/0-of-1.npz")
    undisturbed = verdict.tokens(place)
    for k in range(2):
        shard(place.results / f"store/{k}.npz")

    def nothing(place, rng):
        place.watch = Watch(place.results / "store")
        return {"moment": 0, "what": "nothing"}

    def run(self):
        file = self.results / "cells/a/shards/0-of-1.npz"
        if broken == "tokens":
            shard(file, 1)
        if broken == "missing":
            file.unlink()
        if broken == "damaged":
            file.write_bytes(file.read_bytes()[:-9])
        for k in range(2 if broken == "twice" else 1):
            shard(self.results / f"store/{k}.npz")  # one shard may be decoded again
        return FINE

    monkeypatch.setitem(kinds.KINDS, "nothing", nothing)
    monkeypatch.setattr(Place, "run", run)
    found = verdict.fault(place, "nothing", 0, undisturbed)
    assert (found["finished"] == "broken") == bool(broken), found
    assert found["decoded_twice"] == (2 if broken == "twice" else 1)


def test_a_fault_is_run_once_and_the_exit_code_tells_a_broken_one(monkeypatch, place, tmp_path, capsys):
    """The seeds of a campaign go on where an earlier one ended; a line that was cut off is run again."""
    monkeypatch.setattr(Place, "prepare", lambda self: None)
    monkeypatch.setattr(command, "reference", lambda place: {})
    monkeypatch.setattr(command, "mounts", lambda: False)
    monkeypatch.setattr(command, "warm", lambda: None)  # it is this process's environment that it changes
    out, asked, finished = tmp_path / "f.jsonl", [], "at once"

    def fault(place, kind, seed, undisturbed):
        asked.append((kind, seed))
        said = {"kind": kind, "seed": seed, "finished": finished, "why": "why", "tokens_equal": True}
        return said | {"decoded_twice": 0, "seconds": 1.0}

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["faults", "--out", str(out), "--folder", str(tmp_path / "p"), *arguments])
        command.main()

    monkeypatch.setattr(command, "fault", fault)
    run("--faults", "3", "--seed", "5")
    run("--minutes", "-1", "--seed", "90")  # no time: begins none
    first = list(asked)
    assert [seed for _, seed in first] == [5, 6, 7] and not {k for k, _ in first} & set(kinds.MOUNTING)
    lines = out.read_text().splitlines()
    out.write_text("\n".join([*lines[:2], lines[2][:-5]]))
    run("--faults", "3", "--seed", "5")
    assert asked == [*first, first[2]]
    finished = "broken"
    with pytest.raises(SystemExit) as end:
        run("--faults", "1", "--only", "flip")
    assert end.value.code == 1 and asked[-1] == ("flip", 0) and "broken: flip 0: why" in capsys.readouterr().out
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines() if line.endswith("}")][-1] == 0
    finished = "at once"
    run("--faults", "2", "--seed", str(len(kinds.KINDS) - 1), "--out", str(tmp_path / "both.jsonl"))
    both = [json.loads(line) for line in (tmp_path / "both.jsonl").read_text().splitlines()]
    assert [line["experiment"] for line in both] == ["image", "text"]
    with pytest.raises(ParityError, match="needs mounts"):
        run("--faults", "1", "--only", "disk-full")


def test_a_run_that_ends_before_its_fault_is_begun_again(monkeypatch, place):
    """The machine was busy when its seconds were taken: by now a run takes a tenth of them."""
    place.goal, takes, begun = [], 1.0, []
    (place.folder / "seconds.json").write_text(json.dumps({"decode": 10 * takes, "whole": 10 * takes}))

    class Quick:
        def until(self, moment):
            self.moment = moment
            return min(moment, takes)

        def alive(self):
            return self.moment < takes

    monkeypatch.setattr(kinds, "left_to_do", lambda place, rng: None)
    monkeypatch.setattr(Place, "start", lambda self: begun.append(Quick()) or begun[-1])
    run, moment = kinds.at_random(place, random.Random(0))
    assert run.alive() and len(begun) == 2 and 0.2 * takes <= moment < takes


@pytest.mark.slow
def test_killed_runs_finish_with_the_same_tokens(tmp_path):
    """A real run: Snakemake is killed while its jobs go on, and the next run begins at once. No manual step."""
    place = Place(tmp_path / "p", command.snakefile())
    place.prepare("decoded")
    undisturbed = verdict.reference(place)
    assert len(undisturbed) == 6
    found = verdict.fault(place, "kill-snakemake", 0, undisturbed)
    assert found["finished"] == "at once" and found["code"] == -9, found
