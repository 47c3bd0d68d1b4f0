"""Settings of every test, here and in the two packages: one thread, as jobs run side by side and results must not
depend on it; and the CPU, unless CUDA_VISIBLE_DEVICES is set, as in
`CUDA_VISIBLE_DEVICES=0 pytest tests/decode/test_cuda.py`."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest

from parity.base.machine import cores


@pytest.hookimpl(optionalhook=True)  # optional, as tests run without xdist, too
def pytest_xdist_auto_num_workers(config):
    """Return how many workers `-n auto` means: as many as there are cores, at most 8, as each takes up to 2 GB."""
    return min(8, cores())
