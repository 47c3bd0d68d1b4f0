"""Flags and errors that commands share, and the table that a run ends with."""

import errno
import os
import sys

import pytest

from parity.base import console
from parity.base.command import describe_cost, pin_threads, run_command
from parity.base.errors import ConfigError, ParityError
from parity.base.machine import redact_command
from parity.base.verdict_table import table


@pytest.mark.parametrize(
    ("error", "beginning"),
    [
        (ConfigError("models.m = 'x': allowed: y"), "models.m = 'x': allowed: y"),
        (OSError(errno.ENOSPC, "No space left on device", "results/a.npz"), "results/a.npz: No space left on device;"),
        (PermissionError(errno.EACCES, "Permission denied", "results"), "results: Permission denied; let it be read"),
        (MemoryError(), "too little memory (of the process); run again with more"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\nyou tried 9 bytes"), "too little memory"),
    ],
    ids=lambda x: getattr(x, "strerror", None) or type(x).__name__,
)
def test_an_error_that_a_user_can_fix_is_one_line(error, beginning, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_command(fail)
    message = capsys.readouterr().err
    assert stopped.value.code == 1
    assert message.startswith(f"error: {beginning}")
    assert message.count("\n") == 1


def test_an_error_of_the_project_is_one_line_whatever_it_names():
    assert str(ConfigError("models.m = 'a\nb\x1b'")) == "models.m = 'a\\nb\\x1b'"


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "x"), RuntimeError("a size is wrong")]
)
def test_an_error_of_a_bug_is_raised_as_it_is(error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        run_command(fail)


def test_threads_are_limited_by_cores_without_affinity_too(monkeypatch):
    """macOS has no affinity and counts memory in bytes."""
    gigabytes = float(describe_cost().split()[-2])
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("sys.platform", "darwin")
    pin_threads(1)
    with pytest.raises(ParityError, match=f"allowed: 1 to {os.cpu_count()}"):
        pin_threads(10_000)
    assert float(describe_cost().split()[-2]) <= gigabytes / 500


def test_a_commands_keys_are_redacted():
    command = ["snakemake", "--configfile", "a b.yaml", "--storage-s3-access-key", "one", "tag=two", "--cores", "2"]
    command += ["--storage-s3-secret-key=three", "report", "--keep-going", "--storage-x-token", "four"]
    redacted = "snakemake --configfile 'a b.yaml' --storage-s3-access-key ... ... --cores 2 --storage-s3-secret-key=..."
    assert redact_command(command) == f"{redacted} report --keep-going --storage-x-token ..."


def run_parity(monkeypatch, capsys, *arguments):
    """Run the command `parity` with arguments that make it exit; return its exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["parity", *arguments])
    with pytest.raises(SystemExit) as stopped:
        console.main()
    return stopped.value.code, capsys.readouterr()


def test_stages_are_subcommands(monkeypatch, capsys):
    code, output = run_parity(monkeypatch, capsys, "equality", "exact", "--help")
    assert code == 0
    assert "usage: parity equality exact" in output.out
    code, output = run_parity(monkeypatch, capsys, "certfy")
    assert code == 2
    assert output.err.startswith("error: command 'certfy': allowed: certify, ")
    assert output.err.count("\n") == 1


HEAD = "kind,model,task,method,role,claim,verdict,gain,depth,label\n"
ROWS = (
    "discrete,scenes,,ar,reference,lossless,certified lossless,1.0,,ar\n"
    "discrete,scenes,,sjd,method,lossless,certified lossless,2.0,,sjd window=16\n"
    "continuous,mar,,cspd,method,lossless,,0.21,99,[red]cspd[/red]\n"
)


def test_every_method_but_plain_decoding_has_a_row(tmp_path):
    (tmp_path / "summary.csv").write_text(HEAD + ROWS)
    lines = table(tmp_path / "summary.csv").splitlines()
    row = {name: next((line for line in lines if name in line), "") for name in ("sjd", "cspd", " ar ")}
    assert row["sjd"].split() == ["scenes", "sjd", "window=16", "lossless", "certified", "lossless", "2.00", "passes"]
    assert "[red]cspd[/red]" in row["cspd"]  # a method's name is printed as text, never read as markup
    assert row["cspd"].split()[-4:] == ["not", "tested", "0.21", "calls"]
    assert not row[" ar "]


def test_no_summary_is_one_line(tmp_path):
    with pytest.raises(ParityError, match=r"summary.csv: cannot be read"):
        table(tmp_path / "summary.csv")
