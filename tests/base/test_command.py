"""What commands share: flags, and errors that are one line where a user can mend them."""

import errno
import os
import sys

import pytest

from parity.base import console
from parity.base.command import describe_cost, pin_threads, progress, run_command
from parity.base.errors import ConfigError, ParityError
from parity.base.machine import redact_command


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("models.m = 'x': allowed: y"), "models.m = 'x': allowed: y"),
        (OSError(errno.ENOSPC, "No space left on device", "results/a.npz"), "results/a.npz: No space left on device;"),
        (PermissionError(errno.EACCES, "Permission denied", "results"), "results: Permission denied; let it be read"),
        (MemoryError(), "too little memory (of the process); run again with more"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\nyou tried 9 bytes"), "too little memory"),
    ],
    ids=lambda x: getattr(x, "strerror", None) or type(x).__name__,
)
def test_what_a_user_can_mend_is_one_line(error, words, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_command(main)
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert said.startswith(f"error: {words}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "x"), RuntimeError("a size is wrong")]
)
def test_what_a_bug_raises_is_a_traceback(error):
    def main():
        raise error

    with pytest.raises(type(error)):
        run_command(main)


def test_progress_in_a_log_is_a_line_at_every_tenth(capsys):
    assert list(progress(range(40), 40, "cells")) == list(range(40))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "cells: 4 of 40"
    assert lines[-1] == "cells: 40 of 40"


def test_threads_are_those_of_the_machine_also_where_a_process_has_no_affinity(monkeypatch):
    """As on macOS, which counts memory in bytes."""
    linux = float(describe_cost().split()[-2])
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("sys.platform", "darwin")
    pin_threads(1)
    with pytest.raises(ParityError, match=f"allowed: 1 to {os.cpu_count()}"):
        pin_threads(10_000)
    assert float(describe_cost().split()[-2]) <= linux / 500


def test_a_command_is_told_without_its_keys():
    command = ["snakemake", "--configfile", "a b.yaml", "--storage-s3-access-key", "one", "tag=two", "--cores", "2"]
    command += ["--storage-s3-secret-key=three", "report", "--keep-going", "--storage-x-token", "four"]
    said = "snakemake --configfile 'a b.yaml' --storage-s3-access-key ... ... --cores 2 --storage-s3-secret-key=..."
    assert redact_command(command) == f"{said} report --keep-going --storage-x-token ..."


def ran(monkeypatch, capsys, *given):
    monkeypatch.setattr(sys, "argv", ["parity", *given])
    with pytest.raises(SystemExit) as end:
        console.main()
    return end.value.code, capsys.readouterr()


def test_stages_are_subcommands(monkeypatch, capsys):
    code, said = ran(monkeypatch, capsys, "equality", "exact", "--help")
    assert code == 0
    assert "usage: parity equality exact" in said.out
    code, said = ran(monkeypatch, capsys, "certfy")
    assert code == 2
    assert said.err.startswith("error: command 'certfy': allowed: certify, ")
    assert said.err.count("\n") == 1
