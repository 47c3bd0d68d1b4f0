"""What commands share: flags, and errors that are one line where a user can mend them."""

import argparse
import errno
import os
from pathlib import Path

import pytest

from parity.base.command import arguments, cost, one_line, pin_threads, progress
from parity.base.errors import ConfigError, ParityError
from parity.base.machine import typed


def parsed(names, given):
    parser = argparse.ArgumentParser(exit_on_error=False)
    arguments(parser, *names)
    return vars(parser.parse_args(given))


def test_flags_that_recur_have_one_meaning():
    names = ("spec", "laws?", "shards+", "pictures*", "threads", "device", "batch")
    assert parsed(names, ["--spec", "s", "--shards", "a", "b"]) == {
        "spec": Path("s"), "laws": None, "shards": [Path("a"), Path("b")], "pictures": [],
        "threads": 1, "device": "cpu", "batch": 32,
    }  # fmt: skip
    assert parsed(("laws?", "pictures*"), ["--laws", "l", "--pictures", "p"])["pictures"] == [Path("p")]
    for missing in (["--spec", "s"], ["--shards", "a"]):
        with pytest.raises((argparse.ArgumentError, SystemExit)):
            parsed(names, missing)


@pytest.mark.parametrize("kind", [ParityError, ConfigError])
def test_what_a_user_can_mend_is_one_line(kind, capsys):
    def main():
        raise kind("models.m = 'x': allowed: y")

    with pytest.raises(SystemExit) as stopped:
        one_line(main)
    assert stopped.value.code == 1 and capsys.readouterr().err == "error: models.m = 'x': allowed: y\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "results/a.npz"),
            "results/a.npz: No space left on device; make",
        ),
        (OSError(errno.EFBIG, "File too large"), "a file: File too large; allow larger files and run again"),
        (PermissionError(errno.EACCES, "Permission denied", "results"), "results: Permission denied; let it be read"),
        (OSError(errno.EROFS, "Read-only file system", "results"), "results: Read-only file system; let it be written"),
        (MemoryError(), "too little memory (of the process); run again with more"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\nyou tried 9 bytes"), "too little memory"),
    ],
    ids=lambda x: getattr(x, "strerror", None) or type(x).__name__,
)
def test_what_the_machine_refuses_is_one_line(error, words, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stopped:
        one_line(main)
    said = capsys.readouterr().err
    assert stopped.value.code == 1 and said.startswith(f"error: {words}") and said.count("\n") == 1


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "x"), RuntimeError("a size is wrong")]
)
def test_what_a_bug_raises_is_a_traceback(error):
    def main():
        raise error

    with pytest.raises(type(error)):
        one_line(main)


def test_progress_in_a_log_is_a_line_at_every_tenth(capsys):
    assert list(progress(range(40), 40, "cells")) == list(range(40))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10 and lines[0] == "cells: 4 of 40" and lines[-1] == "cells: 40 of 40"


def test_threads_are_those_of_the_machine_also_where_a_process_has_no_affinity(monkeypatch):
    """As on macOS, which counts memory in bytes."""
    linux = float(cost().split()[-2])
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("sys.platform", "darwin")
    pin_threads(1)
    with pytest.raises(ParityError, match=f"allowed: 1 to {os.cpu_count()}"):
        pin_threads(10_000)
    assert float(cost().split()[-2]) <= linux / 500


def test_a_command_is_told_without_its_keys():
    command = ["snakemake", "--configfile", "a b.yaml", "--storage-s3-access-key", "one", "tag=two", "--cores", "2"]
    command += ["--storage-s3-secret-key=three", "report", "--keep-going", "--storage-x-token", "four"]
    said = "snakemake --configfile 'a b.yaml' --storage-s3-access-key ... ... --cores 2 --storage-s3-secret-key=..."
    assert typed(command) == f"{said} report --keep-going --storage-x-token ..."
