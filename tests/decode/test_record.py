"""What `record` writes, counts and refuses; shards are read back whole or refused as damaged."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_decoders.protocols.anysubset import make_infilling
from parity_decoders.protocols.continuous import Pair, Start
from parity_decoders.steps import Draw, Fill, Step

from parity.base.errors import ParityError
from parity.base.files import write_arrays
from parity.decode import anysubset, continuous, discrete, shard_io
from tests.tables import make_shard_columns

T = torch.tensor
NAN = float("nan")


# --- discrete decoders: two rows of four positions, a vocabulary of five tokens

MODEL = SimpleNamespace(vocab=5, length=4, forced=T([-1, -1, -1, -1]))
RAGGED = [
    Step(T([[1, 2, 0], [3, 0, 0]]), T([2, 1]), T([0, 0])),
    Step(T([[4, 3, 9], [1, 2, 4]]), T([2, 3]), T([2, 1])),  # the 9 is past the end of its row
]


def test_ragged_rows_are_written_at_their_positions():
    decoded = discrete.record(MODEL, T([0, 0]), iter(RAGGED))
    assert decoded.tokens.tolist() == [[1, 2, 4, 3], [3, 1, 2, 4]]
    assert decoded.step.tolist() == [[1, 1, 2, 2], [1, 2, 2, 2]]
    assert decoded.nfe.tolist() == [2, 2]
    assert decoded.kept.tolist() == [[2, 2], [1, 3]]
    assert decoded.passes == 2
    assert decoded.nodes.tolist() == [3 + 2, 3 + 3]  # slots past the end are not evaluated


def test_a_long_queue_takes_more_passes_than_two_bytes_count():
    """Twenty rows of 2,000 positions, one after the other in a batch of one, a token a pass."""
    rows, length = 20, 2000
    queue = SimpleNamespace(keys=torch.zeros(rows), of=T([0]))
    model = SimpleNamespace(vocab=5, length=length, forced=torch.full((length,), -1), queue=queue)

    def decode():
        for number in range(rows * length):
            queue.of = T([number // length])
            yield Step(T([[1]]), T([1]), T([number % length]))

    decoded = discrete.record(model, T([0]), decode())
    assert decoded.passes == rows * length > torch.iinfo(torch.int16).max
    assert (decoded.step == torch.arange(1, length + 1)).all()


def test_final_tokens_may_come_in_any_order():
    """Positions [B, W] at L or beyond are padding; a pass that keeps no token of a row is not counted for it."""
    forced = SimpleNamespace(vocab=5, length=4, forced=T([-1, 4, -1, -1]))
    steps = [
        Step(T([[1, 2, 3], [3, 0, 0]]), T([3, 1]), T([[3, 0, 2], [0, 4, 5]]), T([7, 2])),
        Step(T([[0, 0], [1, 2]]), T([0, 2]), T([[4, 4], [2, 3]])),
    ]
    decoded = discrete.record(forced, T([0, 0]), iter(steps))
    assert decoded.tokens.tolist() == [[2, 4, 3, 1], [3, 4, 1, 2]]
    assert decoded.step.tolist() == [[1, 0, 1, 1], [1, 0, 2, 2]]
    assert decoded.nfe.tolist() == [1, 2]
    assert decoded.nodes.tolist() == [7, 2 + 2]
    assert decoded.kept.tolist() == [[3, 0], [1, 2]]


# --- any-subset decoders: five words and the mask; row 0 ends at position 4

SUBSET = SimpleNamespace(vocab=6, mask=5)
TASK = make_infilling(
    T([[1, 0, 0, 2, 0], [0, 3, 0, 0, 4]]), T([[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]).bool(), 5, 6, end=T([4, 5])
)
FILLS = [
    Fill(T([[1, 2], [0, 2]]), T([[3, 9], [2, 1]]), T([[1, 0], [1, 1]]).bool(), T([1, 2]), T([4, 0])),
    Fill(T([[2, 4], [3, 4]]), T([[4, 9], [0, 9]]), T([[1, 0], [1, 0]]).bool(), T([1, 0]), accepted_drafts=T([1, 0])),
]


def test_loops_fill_in_missing_tokens_alone():
    decoded = anysubset.record(SUBSET, TASK, iter(FILLS))
    assert decoded.tokens.tolist() == [[1, 3, 4, 2, 5], [2, 3, 1, 0, 4]]
    assert decoded.step.tolist() == [[0, 1, 2, 0, 0], [1, 0, 1, 2, 0]]
    assert decoded.nfe.tolist() == [2, 2]
    assert decoded.loops.tolist() == [2, 1]
    assert decoded.aux.tolist() == [4, 0]
    assert decoded.accepted_drafts.tolist() == [1, 0]
    uncounted = anysubset.record(SUBSET, TASK, (fill._replace(accepted_drafts=None) for fill in FILLS))
    assert uncounted.accepted_drafts.tolist() == [-1, -1]
    assert decoded.passes == 2 + 1  # the most passes that a row needed, summed over loops


# --- continuous decoders: two rows of three positions, one number each, decoded in different orders

PAIR, START = Pair(SimpleNamespace(dim=1)), Start(T([[2, 0, 1], [0, 1, 2]]))
ZERO = torch.zeros(2, 2)


def make_draw(values, kept, **fields):
    """Make a step of vectors of one number each from values [B, n], and how many of them each row keeps."""
    return Draw(T(values)[..., None].double(), T(kept), **fields)


DRAWS = [
    make_draw(
        [[1.0, 2.0], [3.0, 9.0]], [2, 1], verified=T([[1, 0], [1, 1]]).bool(), accepted=T([[1, 0], [0, 1]]).bool(),
        log_ratio=ZERO, distance=ZERO + 1, tries=T([5, 0]), gave_up=T([True, False]),
    ),
    make_draw([[4.0, 8.0], [5.0, 6.0]], [1, 2]),
]  # fmt: skip


def test_tokens_of_any_order_are_written_at_their_positions():
    decoded = continuous.record(PAIR, START, iter(DRAWS))
    assert decoded.tokens[..., 0].tolist() == [[2, 4, 1], [3, 5, 6]]
    assert decoded.tokens.dtype == torch.float64
    assert decoded.step.tolist() == [[1, 1, 2], [1, 2, 2]]
    assert decoded.steps.tolist() == [2, 2]
    assert decoded.accepted.tolist() == [[1, -1, -1], [0, 1, -1]]
    assert decoded.distance.isnan().tolist() == [[False, True, True], [False, False, True]]
    assert decoded.tries.tolist() == [5, 0]
    assert decoded.gave_up.tolist() == [1, 0]


# --- decoders that stop early or draw no token

WRONG = {
    "discrete": [
        (RAGGED[:1], "row 0, position 2: the decoder stopped before it was filled in"),
        ([RAGGED[0], RAGGED[1]._replace(tokens=T([[4, 3, 0], [1, 5, 4]]))], "row 1, position 2: .* token 5; .*0 to 4"),
        ([RAGGED[0], RAGGED[1]._replace(tokens=T([[4, 3, 0], [1, -1, 4]]))], "row 1, position 2: .* drew token -1"),
    ],
    "anysubset": [
        (FILLS[:1], "row 0, position 2: the decoder stopped before it was filled in"),
        ([FILLS[0], FILLS[1]._replace(tokens=T([[6, 0], [0, 0]]))], "row 0, position 2: .* drew token 6; .*0 to 5"),
        ([FILLS[0], FILLS[1]._replace(tokens=T([[5, 0], [0, 0]]))], "row 0, .* drew token 5; .* without the mask 5"),
    ],
    "continuous": [
        (DRAWS[:1], "row 0, position 1: the decoder stopped before it was filled in"),
        ([make_draw([[NAN, 2.0], [3.0, 9.0]], [2, 1]), DRAWS[1]], "row 0, position 2: .* token that is not finite"),
        ([DRAWS[0], make_draw([[4.0, 8.0], [5.0, -float("inf")]], [1, 2])], "row 1, position 2: .* not finite"),
        ([DRAWS[0]._replace(log_ratio=ZERO + NAN), DRAWS[1]], "row 0, position 2: the densities .* have no ratio"),
    ],
}
STARTS = {"discrete": (MODEL, T([0, 0])), "anysubset": (SUBSET, TASK), "continuous": (PAIR, START)}


@pytest.mark.parametrize(("kind", "steps", "message"), [(kind, *case) for kind in WRONG for case in WRONG[kind]])
def test_stopping_early_and_drawing_no_token_are_named(kind, steps, message):
    with pytest.raises(ParityError, match=message):
        import_module(f"parity.decode.{kind}").record(*STARTS[kind], iter(steps))


def make_columns(n=3, L=4, passes=4, first=0):
    """Make all columns of a shard of n rows, numbered from `first`, with random tokens [n, L]."""
    columns = make_shard_columns(n, L)
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


@settings(max_examples=60)
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


@pytest.mark.parametrize("name", ["tokens", "network_seconds", "provenance"])
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
    pieces = [{"x": np.zeros(2), "of one": np.zeros(2)}, {"x": np.zeros(3)}]
    for some in (pieces, pieces[::-1]):  # shards of an older version lack a column
        assert {name: len(column) for name, column in shard_io.join(some).items()} == {"x": 5}


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
