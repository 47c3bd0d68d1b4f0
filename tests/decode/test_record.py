"""What `record` writes, counts and refuses, on hand-made steps of a decoder."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from parity_decoders.protocols.anysubset import make_infilling
from parity_decoders.protocols.continuous import Pair, Start
from parity_decoders.steps import Draw, Fill, Step

from parity.base.errors import ParityError
from parity.decode import anysubset, continuous, discrete

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


# --- the wrapper that clocks a continuous model's calls


class Chain:
    """A chain of Gaussian steps that predicts what it is given."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def take(self, which):
        return Chain(self.x[which])

    def predict(self, x, i):
        return x


def test_the_clock_counts_network_and_head_separately():
    law = SimpleNamespace(log_sigma=torch.zeros(4), rows=lambda which: law, log_density=lambda x, row_law: x.sum(-1))
    law.propose = lambda path: torch.zeros(4, 1)
    model = SimpleNamespace(steps=7, dim=1, law=lambda c, path: law, conditions=lambda t, order, at, known: at)
    model.take = lambda rows: model
    model.chain = lambda c: Chain(torch.zeros(4, 1))
    positions = torch.arange(2).expand(2, -1)
    clocked = continuous.Clocked.clock_batch(model, positions)
    row_law = clocked.take(T([0])).law(clocked.conditions(torch.zeros(2, 3, 1), positions, positions, positions), None)
    row_law.rows(T([0])).log_density(torch.zeros(4, 1))
    row_law.propose(None)
    counts = clocked.counts
    assert (counts["passes"], counts["conditions"], counts["head_calls"]) == (1, 4, 7)
    assert clocked.dim == 1
    timed = {"network_seconds", "head_seconds", "density_seconds", "residual_seconds"}
    assert timed < set(counts)
    assert all(counts[k] > 0 for k in timed)
    # Depth counts the calls that an image waited for; the law was asked for row 0 alone.
    assert clocked.depth.tolist() == [1 + 7, 1]
    # Each of the two tokens of row 1 is walked from five points.
    clocked.chain(None).take(T([2, 3])).predict(torch.zeros(2, 5, 1), 1)
    assert clocked.depth.tolist() == [8, 2]
    assert (counts["head_calls"], counts["head_rows"]) == (8, 7 * 4 + 10)
