"""Shards are whole or named as damaged, and join."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import ParityError
from parity.base.files import write_arrays
from parity.decode.shard_io import (
    TIMES,
    Shard,
    is_whole,
    join,
    link,
    read_rows,
    read_shard,
    read_shards,
    rows_of,
    shard_file,
    write_shard,
)


def columns(n=3, L=4, passes=4, first=0):
    rng = np.random.default_rng(first)
    one = np.ones(n)
    return {
        "ids": np.array([f"{first + i:05d}/000" for i in range(n)]),
        "captions": np.array(["a <b> & c"] * n),
        "tokens": rng.integers(0, 9, (n, L)).astype(np.int32),
        "step": np.ones((n, L), np.int16),
        "kept": np.ones((n, passes), np.int16),
        "passes": np.full(n, passes),
        "seconds": one / 2,
        "network_seconds": one / 4,
        **dict.fromkeys(TIMES[2:], one * np.nan),
        **dict.fromkeys(("draft_calls", "draft_tokens"), np.zeros(n, int)),
        "batch": np.full(n, n),
        "at_once": np.full(n, n),
    }


HOW = {"device": "cpu", "spec": {"seed": 1}}


def test_a_shard_comes_back_and_its_columns_are_attributes(tmp_path):
    write_shard(tmp_path / "s.npz", columns(), HOW)
    back = read_shard(tmp_path / "s.npz")
    assert back.provenance == HOW
    assert set(back.columns) == set(columns())
    assert is_whole(tmp_path / "s.npz")
    for name, value in columns().items():
        assert np.array_equal(getattr(back, name), value, equal_nan=value.dtype.kind == "f"), name
    assert back.tokens.dtype == np.int32
    assert not hasattr(back, "nodes")
    with pytest.raises(AttributeError, match="no column nodes"):
        _ = back.nodes


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["flip", "cut"]))
def test_damage_is_a_named_error_or_changes_nothing(tmp_path_factory, where, how):
    """A flipped byte or a cut file: read_shard says which file is damaged, and never returns other tokens."""
    path = tmp_path_factory.mktemp("d") / "s.npz"
    write_shard(path, columns(), HOW)
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    path.write_bytes(bytes(data[:at]) if how == "cut" else bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]))
    try:
        back = read_shard(path)
    except ParityError as error:
        assert str(path) in str(error)
        assert "damaged" in str(error)
        assert not is_whole(path)
    else:
        assert np.array_equal(back.tokens, columns()["tokens"])


@pytest.mark.parametrize("name", ["tokens", "plain_seconds", "provenance"])
def test_a_file_that_lacks_a_column_is_no_shard(tmp_path, name):
    held = {**columns(), "provenance": np.array("{}")}
    del held[name]
    write_arrays(tmp_path / "s.npz", **held)
    with pytest.raises(ParityError, match=rf"s\.npz: damaged \(no {name}\); delete it and run again"):
        read_shard(tmp_path / "s.npz")
    assert not is_whole(tmp_path / "s.npz")
    assert not is_whole(tmp_path / "none.npz")


def test_shards_join_in_order_whatever_their_passes(tmp_path):
    parts = [columns(3, passes=4), columns(2, passes=7, first=3), columns(1, passes=2, first=5)]
    paths = [tmp_path / f"{k}.npz" for k in range(3)]
    for path, part in zip(paths, parts, strict=True):
        write_shard(path, part, HOW)
    whole = read_shards(paths)
    assert whole.ids.tolist() == [f"{i:05d}/000" for i in range(6)]
    assert whole.kept.shape == (6, 7)
    assert whole.kept.sum(1).tolist() == whole.passes.tolist() == [4] * 3 + [7] * 2 + [2]
    assert read_shards(reversed(paths)).ids[0] == "00005/000"
    assert join([{"x": np.zeros((2, 3, 4))}] * 2)["x"].shape == (4, 3, 4)


def test_inputs_must_be_the_rows_of_the_shard(tmp_path):
    ids = columns()["ids"]
    for k, part in enumerate((ids[:1], ids[1:])):
        write_arrays(tmp_path / f"{k}.npz", ids=part, x=np.zeros((len(part), 2)), extra=np.array("of all rows"))
    paths = [tmp_path / "0.npz", tmp_path / "1.npz"]
    assert set(read_rows(paths[0])) == {"ids", "x"}
    assert rows_of(paths, Shard(columns()))["x"].shape == (3, 2)
    with pytest.raises(ParityError, match=r"first: 00001/000 against 00000/000\); run the cell again"):
        rows_of(reversed(paths), Shard(columns()))


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


def test_a_stored_name_is_of_all_that_the_bytes_depend_on():
    """Each of these differs in one thing; the order of keys and columns is none."""
    names = [shard_file(Path("store"), *given) for given in [("discrete", SPEC, "0", ROWS), *OTHERS]]
    assert len(set(names)) == len(names)
    turned = {k: ROWS[k] for k in reversed(ROWS)}
    assert shard_file(Path("store"), "discrete", dict(reversed(SPEC.items())), "0", turned) == names[0]


@pytest.mark.parametrize("hard", [True, False])
def test_a_stored_file_is_put_in_its_place_whole(tmp_path, monkeypatch, hard):
    """By a hard link, or by a copy where the file system has none; over an old file, and without litter."""
    (tmp_path / "stored").write_bytes(b"new")
    out = tmp_path / "cell/0.npz"
    out.parent.mkdir()
    out.write_bytes(b"old")
    if not hard:

        def refuse(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refuse)
    link(tmp_path / "stored", out)
    assert out.read_bytes() == b"new"
    assert [p.name for p in out.parent.iterdir()] == ["0.npz"]
    assert out.samefile(tmp_path / "stored") == hard
