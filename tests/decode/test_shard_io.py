"""Shards are read back whole or refused as damaged, and join in order."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import ParityError
from parity.base.files import write_arrays
from parity.decode import shard_io
from tests.tables import make_shard_columns


def make_columns(n=3, L=4, passes=4, first=0):
    """Make all columns of a shard of n rows, numbered from `first`, with random tokens [n, L]."""
    columns = make_shard_columns(n, L) | dict.fromkeys(shard_io.TIMES[2:], np.full(n, np.nan))
    columns |= {"ids": np.array([f"{first + i:05d}/000" for i in range(n)]), "captions": np.array(["a <b> & c"] * n)}
    columns["tokens"] = np.random.default_rng(first).integers(0, 9, (n, L)).astype(np.int32)
    return columns | {"kept": np.ones((n, passes), np.int16), "passes": np.full(n, passes)}


HOW = {"device": "cpu", "spec": {"seed": 1}}


def test_a_shard_is_read_back_with_columns_as_attributes(tmp_path):
    shard_io.write_shard(tmp_path / "s.npz", make_columns(), HOW)
    shard = shard_io.read_shard(tmp_path / "s.npz")
    assert shard.provenance == HOW
    assert set(shard.columns) == set(make_columns())
    assert shard_io.is_whole(tmp_path / "s.npz")
    for name, value in make_columns().items():
        assert np.array_equal(getattr(shard, name), value, equal_nan=value.dtype.kind == "f"), name
    assert shard.tokens.dtype == np.int32
    assert not hasattr(shard, "nodes")
    with pytest.raises(AttributeError, match="no column nodes"):
        _ = shard.nodes


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), damage=st.sampled_from(["flip", "cut"]))
def test_damage_is_a_named_error_or_changes_nothing(tmp_path_factory, share, damage):
    """With a flipped byte or a cut file, read_shard names the damaged file or returns the same tokens."""
    path = tmp_path_factory.mktemp("d") / "s.npz"
    shard_io.write_shard(path, make_columns(), HOW)
    data = bytearray(path.read_bytes())
    i = int(share * len(data))
    data[i] ^= 0x5A
    path.write_bytes(data[:i] if damage == "cut" else data)
    try:
        shard = shard_io.read_shard(path)
    except ParityError as error:
        assert str(path) in str(error)
        assert "damaged" in str(error)
        assert not shard_io.is_whole(path)
    else:
        assert np.array_equal(shard.tokens, make_columns()["tokens"])


@pytest.mark.parametrize("name", ["tokens", "plain_seconds", "provenance"])
def test_a_file_that_lacks_a_column_is_no_shard(tmp_path, name):
    arrays = {**make_columns(), "provenance": np.array("{}")}
    del arrays[name]
    write_arrays(tmp_path / "s.npz", **arrays)
    with pytest.raises(ParityError, match=rf"s\.npz: damaged \(no {name}\); delete it and run again"):
        shard_io.read_shard(tmp_path / "s.npz")
    assert not shard_io.is_whole(tmp_path / "s.npz")
    assert not shard_io.is_whole(tmp_path / "none.npz")


def test_shards_join_in_order_whatever_their_passes(tmp_path):
    shards = [make_columns(3, passes=4), make_columns(2, passes=7, first=3), make_columns(1, passes=2, first=5)]
    paths = [tmp_path / f"{k}.npz" for k in range(3)]
    for path, shard in zip(paths, shards, strict=True):
        shard_io.write_shard(path, shard, HOW)
    joined = shard_io.read_shards(paths)
    assert joined.ids.tolist() == [f"{i:05d}/000" for i in range(6)]
    assert joined.kept.shape == (6, 7)
    assert joined.kept.sum(1).tolist() == joined.passes.tolist() == [4] * 3 + [7] * 2 + [2]
    assert shard_io.read_shards(reversed(paths)).ids[0] == "00005/000"
    assert shard_io.join([{"x": np.zeros((2, 3, 4))}] * 2)["x"].shape == (4, 3, 4)


def test_inputs_must_be_the_rows_of_the_shard(tmp_path):
    ids = make_columns()["ids"]
    for k, shard_ids in enumerate((ids[:1], ids[1:])):
        x = np.zeros((len(shard_ids), 2))
        write_arrays(tmp_path / f"{k}.npz", ids=shard_ids, x=x, extra=np.array("of all rows"))
    paths = [tmp_path / "0.npz", tmp_path / "1.npz"]
    assert set(shard_io.read_rows(paths[0])) == {"ids", "x"}
    assert shard_io.rows_of(paths, shard_io.Shard(make_columns()))["x"].shape == (3, 2)
    with pytest.raises(ParityError, match=r"first: 00001/000 against 00000/000\); run the cell again"):
        shard_io.rows_of(reversed(paths), shard_io.Shard(make_columns()))


SPEC, ROWS = {"method": "sjd", "seed": 1}, {"ids": np.array(["a", "b"]), "x": np.zeros((2, 2), np.float32)}
OTHERS = [
    ("discrete", {**SPEC, "seed": 2}, "0", ROWS),
    ("anysubset", SPEC, "0", ROWS),
    ("discrete", SPEC, "1", ROWS),
    ("discrete", SPEC, "0", ROWS | {"ids": np.array(["a", "c"])}),
    ("discrete", SPEC, "0", ROWS | {"x": np.array([[0, 0], [0, 1e-9]], np.float32)}),
    ("discrete", SPEC, "0", ROWS | {"x": np.zeros((2, 2))}),
    ("discrete", SPEC, "0", {"ids": ROWS["ids"]}),
]


def test_a_stored_name_depends_on_all_inputs():
    """Each of OTHERS differs in one thing; the order of keys and columns is none."""
    names = [shard_io.shard_file(Path("store"), *inputs) for inputs in [("discrete", SPEC, "0", ROWS), *OTHERS]]
    assert len(set(names)) == len(names)
    reordered = {k: ROWS[k] for k in reversed(ROWS)}
    assert shard_io.shard_file(Path("store"), "discrete", dict(reversed(SPEC.items())), "0", reordered) == names[0]


@pytest.mark.parametrize("hard", [True, False])
def test_a_stored_file_is_linked_whole(tmp_path, monkeypatch, hard):
    """By a hard link, or by a copy where the file system has none; it replaces an old file and leaves no litter."""
    (tmp_path / "stored").write_bytes(b"new")
    out = tmp_path / "cell/0.npz"
    out.parent.mkdir()
    out.write_bytes(b"old")
    if not hard:

        def refuse(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refuse)
    shard_io.link(tmp_path / "stored", out)
    assert out.read_bytes() == b"new"
    assert [p.name for p in out.parent.iterdir()] == ["0.npz"]
    assert out.samefile(tmp_path / "stored") == hard
