"""One thread for every test, as results must not depend on it; and a clock for tests of time limits."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


class Clock:
    """A clock that `sleep` moves, and each reading by a microsecond, however fast the machine is."""

    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def monotonic(self):
        self.now += 1e-6
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch):
    """A Clock that the modules with time limits read in place of the machine's."""
    from parity_certify import design, sampler, texts

    clock = Clock()
    for module in (design, sampler, texts):
        monkeypatch.setattr(module, "time", clock)
    return clock
