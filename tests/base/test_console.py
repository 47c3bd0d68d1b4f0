"""The console script: the stages' commands under one name."""

import sys

import pytest

from parity.base import console


def ran(monkeypatch, capsys, *given):
    monkeypatch.setattr(sys, "argv", ["parity", *given])
    with pytest.raises(SystemExit) as end:
        console.main()
    return end.value.code, capsys.readouterr()


def test_stages_are_subcommands(monkeypatch, capsys):
    code, said = ran(monkeypatch, capsys, "equality", "exact", "--help")
    assert code == 0 and "usage: parity equality exact" in said.out
    code, said = ran(monkeypatch, capsys, "certify", "--help")
    assert code == 0 and "transformers" in said.out
    assert {"certify", "decode", "equality", "inputs", "metrics", "models", "report", "training"} <= set(
        console.commands()
    )


def test_an_unknown_command_is_one_line(monkeypatch, capsys):
    code, said = ran(monkeypatch, capsys, "certfy")
    assert code == 2 and said.err.startswith("error: command 'certfy': allowed: certify, ")
    assert said.err.count("\n") == 1
