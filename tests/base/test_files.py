"""Files are written whole, and damaged ones are refused when read."""

import contextlib
import os
import resource
import signal
import sys

import numpy as np
import pytest
import torch
from parity_certify.distributions import random_distribution, write_distribution
from PIL import Image

from parity.base import files
from parity.base.command import describe_mendable
from parity.base.errors import ParityError
from parity.base.weights import save_weights
from parity.decode import shard_io
from parity.generate import Made
from parity.generate.__main__ import save_made


@pytest.fixture
def small_files(monkeypatch):
    """A function that makes a context in which no file may grow beyond a size, as on a full disk: a real failure in
    the middle of a write. What is imported meanwhile is not compiled to files, which would be cut for good."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    @contextlib.contextmanager
    def limit(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limit


def save_noise(path):
    """Save an image that does not compress, as `parity generate` does."""
    image = Image.fromarray(np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8))
    save_made([Made(0, "noise", image, None, None, 1, 0.1, {})], path)


WRITERS = {
    "x.json": lambda path: files.write_json(path, "x" * 9999),
    "x.npz": lambda path: files.write_arrays(path, x=np.random.default_rng(0).random(9999)),
    "x.safetensors": lambda path: save_weights({"x": torch.zeros(9999)}, path),
    "x.png": save_noise,
    "target.json": lambda path: write_distribution(random_distribution(6, 3), path),
    "linked.npz": lambda path: shard_io.link(path.with_name("source"), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_that_stops_in_the_middle_names_the_file_and_leaves_the_old(tmp_path, small_files, monkeypatch, name):
    (tmp_path / "source").write_bytes(bytes(9999))
    (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    with small_files(4000), pytest.raises(OSError) as error:
        WRITERS[name](tmp_path / name)
    assert describe_mendable(error.value) == f"{tmp_path / name}: File too large; allow larger files and run again"
    assert {file.name for file in tmp_path.iterdir()} == {"source", name}
    assert (tmp_path / name).read_bytes() == b"old"
    WRITERS[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size > 4000


def test_a_damaged_file_is_named(tmp_path):
    arrays, record = tmp_path / "x.npz", tmp_path / "x.json"
    files.write_arrays(arrays, x=np.arange(5))
    files.write_json(record, {"b": 1.5, "a": [None, "é"]})
    assert files.read_arrays(arrays)["x"].tolist() == [0, 1, 2, 3, 4]
    arrays.write_bytes(arrays.read_bytes()[:-9])
    with pytest.raises(ParityError, match=r"x\.npz: damaged \(.*\); delete it and run again"):
        files.read_arrays(arrays)
    for cut in (record.read_bytes()[:-9], b""):
        record.write_bytes(cut)
        with pytest.raises(ParityError, match=r"x\.json: damaged"):
            files.read_json(record)
    with pytest.raises(FileNotFoundError):
        files.read_arrays(tmp_path / "y.npz")


def test_numbered_files_are_found_by_one_pattern(tmp_path):
    """In the order of their numbers; a gap or a missing file is one line."""
    names = [str(tmp_path / f"{k}-of-12.npz") for k in range(12)]
    for name in (*names, str(tmp_path / "0-of-2.npz"), str(tmp_path / ".0-of-12.npz.part")):
        open(name, "w").close()
    assert [str(p) for p in files.find_numbered_files(tmp_path / "*-of-12.npz")] == names
    assert files.find_numbered_files(tmp_path / "0-of-2.npz") == [tmp_path / "0-of-2.npz"]
    for pattern in ("*-of-2.npz", "*-of-3.npz", "*.json"):
        with pytest.raises(ParityError, match="numbered from 0 without a gap"):
            files.find_numbered_files(tmp_path / pattern)
    os.remove(names[3])
    with pytest.raises(ParityError, match="11 files"):
        files.find_numbered_files(tmp_path / "*-of-12.npz")
