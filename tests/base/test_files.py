"""Files are whole or absent, and damage is noticed when they are read."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from parity.base import files
from parity.base.errors import ParityError


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(os, "fdopen", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert files.read_json(path) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_killed_writer_never_leaves_half_a_file(tmp_path):
    """SIGKILL at random moments of a process that rewrites one file without pause: the file is always whole."""
    code = f"""
import sys
sys.path.insert(0, {json.dumps(os.path.dirname(os.path.dirname(os.path.dirname(files.__file__))))})
from pathlib import Path
from parity.base import files
files.publish(Path({json.dumps(str(tmp_path / "f"))}), b"a" * 300_000)
print("go", flush=True)
while True:
    for c in (b"a", b"b"):
        files.publish(Path({json.dumps(str(tmp_path / "f"))}), c * 300_000)
"""
    rng = np.random.default_rng(0)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            try:
                writer.wait(timeout=rng.uniform(0.001, 0.05))
            except subprocess.TimeoutExpired:
                writer.kill()
        data = (tmp_path / "f").read_bytes()
        assert data in (b"a" * 300_000, b"b" * 300_000)


def test_digest_ignores_order_and_sees_values():
    assert files.digest({"a": 1, "b": [1, 2]}) == files.digest({"b": [1, 2], "a": 1})
    assert len({files.digest(v) for v in ({"a": 1}, {"a": 1.5}, {"a": "1"}, {"b": 1}, {"a": [1]})}) == 5


def test_a_damaged_file_of_arrays_is_named_and_one_that_is_missing_is_missing(tmp_path):
    files.write_arrays(tmp_path / "x.npz", x=np.arange(5))
    assert files.read_arrays(tmp_path / "x.npz")["x"].tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-9])
    with pytest.raises(ParityError, match=r"x\.npz: damaged \(.*\); delete it and run again"):
        files.read_arrays(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        files.read_arrays(tmp_path / "y.npz")
