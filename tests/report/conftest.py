"""A results folder that is made up once, and what the report gathers from it."""

import copy

import pytest
from matplotlib.figure import Figure

from parity.report.collect import Gathered, gather
from tests.report import made


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Write every file of `made.SETTINGS` into a folder; with the checked settings and the published numbers."""
    root = tmp_path_factory.mktemp("made")
    settings = made.write_results(root, p={"gsd": 1e-300, "jacobi": 1e-9})
    return root, settings, made.write_papers(root / "papers.csv")


@pytest.fixture(scope="session")
def shared_gathered(results) -> Gathered:
    root, settings, papers = results
    return gather(settings, [papers], root=root)


@pytest.fixture
def gathered(shared_gathered) -> Gathered:
    """Copy what was gathered for each test, which may spoil it."""
    return copy.deepcopy(shared_gathered)


@pytest.fixture
def undrawn(monkeypatch):
    """Leave figures empty, for tests of what a page says: drawing is most of a page's time."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, stream, **options: stream.write(b"<svg/>"))
