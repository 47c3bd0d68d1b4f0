"""Files are whole or absent, and damage is noticed when they are read."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base import files as storage


def shard(n=3, L=4):
    rng = np.random.default_rng(0)
    return storage.Shard(
        ids=np.array([f"{i:05d}/000" for i in range(n)]),
        captions=np.array(["a <b> & c"] * n),
        tokens=rng.integers(0, 9, (n, L)).astype(np.int32),
        step=np.ones((n, L), np.int16),
        nfe=np.full(n, 4),
        nodes=np.full(n, 4),
        kept=np.ones((n, L), np.int16),
        seconds=np.full(n, 0.5),
        batch=np.full(n, n),
        passes=np.full(n, L),
        provenance={"device": "cpu", "spec": {"seed": 1}},
    )


def test_a_shard_comes_back(tmp_path):
    storage.write_shard(tmp_path / "s.npz", shard())
    back = storage.read_shard(tmp_path / "s.npz")
    assert (
        np.array_equal(back.tokens, shard().tokens)
        and back.provenance == shard().provenance
        and back.ids.tolist() == shard().ids.tolist()
    )


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["flip", "cut"]))
def test_damage_is_a_named_error_or_changes_nothing(tmp_path_factory, where, how):
    """A flipped byte or a cut file: read_shard says which file is damaged, and never returns other tokens."""
    path = tmp_path_factory.mktemp("d") / "s.npz"
    storage.write_shard(path, shard())
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    path.write_bytes(bytes(data[:at]) if how == "cut" else bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]))
    try:
        back = storage.read_shard(path)
    except ValueError as error:
        assert str(path) in str(error) and "damaged" in str(error)
    else:
        assert np.array_equal(back.tokens, shard().tokens)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "x.json"
    storage.write_json(path, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(os, "fdopen", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        storage.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert storage.read_json(path) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_killed_writer_never_leaves_half_a_file(tmp_path):
    """SIGKILL at random moments of a process that rewrites one file without pause: each time the file is one of the whole versions."""
    code = f"""
import sys
sys.path.insert(0, {json.dumps(os.path.dirname(os.path.dirname(storage.__file__)))})
from pathlib import Path
from parity.base import files as storage
storage.publish(Path({json.dumps(str(tmp_path / "f"))}), b"a" * 300_000)
print("go", flush=True)
while True:
    for c in (b"a", b"b"):
        storage.publish(Path({json.dumps(str(tmp_path / "f"))}), c * 300_000)
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
    assert storage.digest({"a": 1, "b": [1, 2]}) == storage.digest({"b": [1, 2], "a": 1})
    assert len({storage.digest(v) for v in ({"a": 1}, {"a": 1.5}, {"a": "1"}, {"b": 1}, {"a": [1]})}) == 5
