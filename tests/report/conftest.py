"""A results folder that is made up once, and what the report gathers from it."""

import copy

import pytest
from matplotlib.figure import Figure

from parity.report.collect import Gathered, gather
from tests.report import made


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """The folder of a made-up experiment, `made.SETTINGS`; its configuration, and a file of published numbers."""
    root = tmp_path_factory.mktemp("made")
    settings = made.write_results(root, p={"gsd": 1e-300, "jacobi": 1e-9})
    return root, settings, made.write_papers(root / "papers.csv")


@pytest.fixture(scope="session")
def shared_gathered(results) -> Gathered:
    """What the report gathers of the made-up results, shared by all tests."""
    root, settings, papers = results
    return gather(settings, [papers], root=root)


@pytest.fixture
def gathered(shared_gathered) -> Gathered:
    """A copy of `shared_gathered` for each test, which may change it."""
    return copy.deepcopy(shared_gathered)


def leave_undrawn(patch):
    """Write empty figures in place of drawings, which take most of a page's time, for tests of what a page says."""
    patch.setattr(Figure, "savefig", lambda figure, stream, **options: stream.write(b"<svg/>"))


@pytest.fixture
def undrawn(monkeypatch):
    leave_undrawn(monkeypatch)
