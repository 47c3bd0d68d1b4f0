"""Run `parity train` in a folder of its own, and kill it at a step."""

import sys

import pytest

from parity.train import __main__ as command


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Run each test in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def run(monkeypatch, *arguments):
    """Run the command `parity train` with arguments."""
    monkeypatch.setattr(sys, "argv", ["parity train", *map(str, arguments)])
    command.main()


def kill_at(monkeypatch, owner, method, step):
    """Let training stop at a step, after each step's checkpoint, as if killed; `owner.method(..., at, rng)` is called
    in each."""
    learn = getattr(owner, method)

    def die(self, *given):
        if given[-2] == step:
            raise Killed
        return learn(self, *given)

    monkeypatch.setattr(owner, method, die)
