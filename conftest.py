"""Settings of every test, here and in the two packages: one thread, as jobs run side by side and results must not
depend on it; and the CPU, unless CUDA_VISIBLE_DEVICES is set, as in
`CUDA_VISIBLE_DEVICES=0 pytest tests/decode/test_cuda.py`."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest

from parity.base.machine import cores

LIMIT = 20  # CPU-seconds of a test without the marker `long`
STARTED = pytest.StashKey[float]()


@pytest.hookimpl(optionalhook=True)  # optional, as tests run without xdist, too
def pytest_xdist_auto_num_workers(config):
    """Return how many workers `-n auto` means: as many as there are cores, at most 8, as each takes up to 2 GB."""
    return min(8, cores())


def measure_cpu_seconds():
    """Measure the CPU-seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Note what CPU-seconds had been spent before a test and its fixtures began."""
    item.stash[STARTED] = measure_cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Fail a test that took more than LIMIT CPU-seconds with its fixtures and is not marked `long`."""
    report = yield
    seconds = measure_cpu_seconds() - item.stash[STARTED]
    if call.when == "teardown" and report.passed and seconds > LIMIT and not item.get_closest_marker("long"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} took {seconds:.0f} CPU-seconds; allowed: {LIMIT}, or the marker long"
    return report
