"""Fixtures for all tests of the workflow's package."""

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes fails nothing
settings.register_profile("parity", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parity")


@pytest.fixture
def run_main(monkeypatch):
    """A function that runs a command's `main` with arguments, in this process."""

    def run(main, *arguments):
        monkeypatch.setattr("sys.argv", ["command", *map(str, arguments)])
        main()

    return run


@pytest.fixture
def in_clone(monkeypatch):
    """Run a test in the folder of the project."""
    monkeypatch.chdir(Path(__file__).parents[1])


@pytest.fixture(scope="session")
def make_stand_in(tmp_path_factory):
    """A function that returns a stand-in's configuration entry by name, with absolute paths, and writes each once."""
    from parity.stand_ins import make_entry

    folder = tmp_path_factory.mktemp("stand_ins")
    entries = {}

    def make_once(name):
        if name not in entries:
            entries[name] = make_entry(name, folder / name)
        return copy.deepcopy(entries[name])

    return make_once
