"""What is written of a decoder's steps, by hand-made steps: where tokens go, what is counted, what is refused."""

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


# --- discrete: two rows of four positions, five tokens

MODEL = SimpleNamespace(vocab=5, length=4, forced=T([-1, -1, -1, -1]))
RAGGED = [
    Step(T([[1, 2, 0], [3, 0, 0]]), T([2, 1]), T([0, 0])),
    Step(T([[4, 3, 9], [1, 2, 4]]), T([2, 3]), T([2, 1])),  # the 9 stands past the end
]


def test_ragged_rows_are_written_where_they_stand():
    done = discrete.record(MODEL, T([0, 0]), iter(RAGGED))
    assert done.tokens.tolist() == [[1, 2, 4, 3], [3, 1, 2, 4]]
    assert done.step.tolist() == [[1, 1, 2, 2], [1, 2, 2, 2]]
    assert done.nfe.tolist() == [2, 2]
    assert done.kept.tolist() == [[2, 2], [1, 3]]
    assert done.passes == 2
    assert done.nodes.tolist() == [3 + 2, 3 + 3]  # slots past the end are not evaluated


def test_tokens_may_be_final_anywhere_and_rows_end_at_their_own_pass():
    """Positions [B, W] in any order, those at L or beyond nobody's; a pass without kept tokens is none of the row's."""
    forced = SimpleNamespace(vocab=5, length=4, forced=T([-1, 4, -1, -1]))
    steps = [
        Step(T([[1, 2, 3], [3, 0, 0]]), T([3, 1]), T([[3, 0, 2], [0, 4, 5]]), T([7, 2])),
        Step(T([[0, 0], [1, 2]]), T([0, 2]), T([[4, 4], [2, 3]])),
    ]
    done = discrete.record(forced, T([0, 0]), iter(steps))
    assert done.tokens.tolist() == [[2, 4, 3, 1], [3, 4, 1, 2]]
    assert done.step.tolist() == [[1, 0, 1, 1], [1, 0, 2, 2]]
    assert done.nfe.tolist() == [1, 2]
    assert done.nodes.tolist() == [7, 2 + 2]
    assert done.kept.tolist() == [[3, 0], [1, 2]]


# --- any-subset: five words and the mask; row 0 ends at position 4

SUBSET = SimpleNamespace(vocab=6, mask=5)
TASK = make_infilling(
    T([[1, 0, 0, 2, 0], [0, 3, 0, 0, 4]]), T([[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]).bool(), 5, 6, end=T([4, 5])
)
FILLS = [
    Fill(T([[1, 2], [0, 2]]), T([[3, 9], [2, 1]]), T([[1, 0], [1, 1]]).bool(), T([1, 2]), T([4, 0])),
    Fill(T([[2, 4], [3, 4]]), T([[4, 9], [0, 9]]), T([[1, 0], [1, 0]]).bool(), T([1, 0]), accepted_drafts=T([1, 0])),
]


def test_loops_fill_in_what_is_missing_and_nothing_else():
    done = anysubset.record(SUBSET, TASK, iter(FILLS))
    assert done.tokens.tolist() == [[1, 3, 4, 2, 5], [2, 3, 1, 0, 4]]
    assert done.step.tolist() == [[0, 1, 2, 0, 0], [1, 0, 1, 2, 0]]
    assert done.nfe.tolist() == [2, 2]
    assert done.loops.tolist() == [2, 1]
    assert done.aux.tolist() == [4, 0]
    assert done.accepted_drafts.tolist() == [1, 0]
    none = anysubset.record(SUBSET, TASK, (fill._replace(accepted_drafts=None) for fill in FILLS))
    assert none.accepted_drafts.tolist() == [-1, -1]
    assert done.passes == 2 + 1  # the largest of each loop, whichever row needed it


# --- continuous: two rows of three places, one number each, in an order of their own

PAIR, START = Pair(SimpleNamespace(dim=1)), Start(T([[2, 0, 1], [0, 1, 2]]))
YES = torch.ones(2, 2, dtype=torch.bool)
ZERO = torch.zeros(2, 2)


def drawn(values, kept, **more):
    return Draw(T(values)[..., None].double(), T(kept), **more)


DRAWS = [
    drawn(
        [[1.0, 2.0], [3.0, 9.0]], [2, 1], verified=T([[1, 0], [1, 1]]).bool(), accepted=T([[1, 0], [0, 1]]).bool(),
        log_ratio=ZERO, distance=ZERO + 1, tries=T([5, 0]), gave_up=T([True, False]),
    ),
    drawn([[4.0, 8.0], [5.0, 6.0]], [1, 2]),
]  # fmt: skip


def test_places_are_written_at_their_positions_and_counted_by_place():
    done = continuous.record(PAIR, START, iter(DRAWS))
    assert done.tokens[..., 0].tolist() == [[2, 4, 1], [3, 5, 6]]
    assert done.tokens.dtype == torch.float64
    assert done.step.tolist() == [[1, 1, 2], [1, 2, 2]]
    assert done.steps.tolist() == [2, 2]
    assert done.accepted.tolist() == [[1, -1, -1], [0, 1, -1]]
    assert done.distance.isnan().tolist() == [[False, True, True], [False, False, True]]
    assert done.tries.tolist() == [5, 0]
    assert done.gave_up.tolist() == [1, 0]


# --- decoders that stop early, or draw what is no token

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
        ([drawn([[NAN, 2.0], [3.0, 9.0]], [2, 1]), DRAWS[1]], "row 0, position 2: .* token that is not finite"),
        ([DRAWS[0], drawn([[4.0, 8.0], [5.0, -float("inf")]], [1, 2])], "row 1, position 2: .* not finite"),
        ([DRAWS[0]._replace(log_ratio=ZERO + NAN), DRAWS[1]], "row 0, position 2: the densities .* have no ratio"),
    ],
}
STARTS = {"discrete": (MODEL, T([0, 0])), "anysubset": (SUBSET, TASK), "continuous": (PAIR, START)}


@pytest.mark.parametrize(("kind", "steps", "message"), [(kind, *case) for kind in WRONG for case in WRONG[kind]])
def test_a_decoder_that_stops_or_draws_no_token_is_named(kind, steps, message):
    with pytest.raises(ParityError, match=message):
        import_module(f"parity.decode.{kind}").record(*STARTS[kind], iter(steps))


# --- the clock of network and head


class Chain:
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def take(self, which):
        return Chain(self.x[which])

    def predict(self, x, i):
        return x


def test_the_clock_of_a_model_counts_its_halves_and_those_of_its_rows():
    law = SimpleNamespace(log_sigma=torch.zeros(4), rows=lambda which: law, log_density=lambda x, inner: x.sum(-1))
    law.propose = lambda path: torch.zeros(4, 1)
    model = SimpleNamespace(steps=7, dim=1, law=lambda c, path: law, conditions=lambda t, o, places, known: places)
    model.take = lambda rows: model
    model.chain = lambda c: Chain(torch.zeros(4, 1))
    places = torch.arange(2).expand(2, -1)
    clocked = continuous.Clocked.clock_batch(model, places)
    inner = clocked.take(T([0])).law(clocked.conditions(torch.zeros(2, 3, 1), places, places, places), None)
    inner.rows(T([0])).log_density(torch.zeros(4, 1))
    inner.propose(None)
    counts = clocked.counts
    assert (counts["passes"], counts["conditions"], counts["head_calls"]) == (1, 4, 7)
    assert clocked.dim == 1
    timed = {"network_seconds", "head_seconds", "density_seconds", "residual_seconds"}
    assert timed < set(counts)
    assert all(counts[k] > 0 for k in timed)
    assert clocked.depth.tolist() == [1 + 7, 1]  # what an image waited for: the law was one row's
    clocked.chain(None).take(T([2, 3])).predict(torch.zeros(2, 5, 1), 1)  # five points of each of row 1's tokens
    assert clocked.depth.tolist() == [8, 2]
    assert (counts["head_calls"], counts["head_rows"]) == (8, 7 * 4 + 10)
