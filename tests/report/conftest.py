"""A results folder that is made up once, and what the report gathers from it."""

import copy

import pytest
from matplotlib.figure import Figure

from parity.report.collect import Gathered, gather
from tests.report import made


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A folder with every file of `made.SETTINGS`, the published numbers, and the checked settings."""
    root = tmp_path_factory.mktemp("made")
    settings = made.folder(root, p={"gsd": 1e-300, "jacobi": 1e-9})
    return root, settings, made.papers(root / "papers.csv")


@pytest.fixture(scope="session")
def once(results) -> Gathered:
    root, settings, papers = results
    return gather(settings, [papers], root=root)


@pytest.fixture
def gathered(once) -> Gathered:
    """A copy for each test, which may spoil it."""
    return copy.deepcopy(once)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are empty files: for tests of what a page says, not draws. Drawing is most of a page's time."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, stream, **how: stream.write(b"<svg/>"))
