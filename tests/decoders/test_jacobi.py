"""Jacobi-type decoders: the window, what saves passes, GSD's groups, and each random number read at one place."""

import pytest
import torch
from parity_decoders.discrete.gsd import find_groups
from parity_decoders.discrete.sjd_pac import make_layout
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.verification import sample_token
from parity_decoders.window import Window

from parity.models.discrete.tabular import TabularModel, count_prefixes
from tests.tables import decode_table, make_table


def advance_window(init, n_kept, forced=None, **fields):
    """Make a window of four slots over two rows of five tokens, and advance it by one pass, which drew tokens 1, 2, 3,
    4 and kept `n_kept` [2] of them; `init` says how drafts begin. Return the window, its distributions and the step."""
    model = TabularModel(make_table(5, 5), 5, 2, width=2, forced=forced)
    slots = Window(model, torch.zeros(2, dtype=torch.int64), counted_noise(0, range(2)), 4, init, **fields)
    slots.begin_pass()
    p = slots.compute_probs(slots.make_drafts().tokens)
    step = slots.advance(torch.tensor([[1, 2, 3, 4]]).repeat(2, 1), torch.tensor(n_kept), p)
    slots.begin_pass()
    return slots, p, step


@pytest.mark.parametrize(("init", "new"), [("repeat_left", [4, 4]), ("repeat_above", [3, 3])])
def test_a_new_slot_repeats_the_nearest_token(init, new):
    """Positions 0 to 3 hold 1, 2, 3, 4; position 4 has 4 to its left and 3 above."""
    slots, _, _ = advance_window(init, [1, 3])
    draft, _, point = slots.make_drafts()
    assert [draft[0, 3].item(), draft[1, 1].item()] == new
    assert point[0, 3]
    assert point[1, 1]


@pytest.mark.parametrize(("init", "source"), [("sample_left", 3), ("sample_above", 2)])
def test_a_new_slot_is_drawn_from_the_nearest_distribution(init, source):
    slots, p, _ = advance_window(init, [1, 3])
    draft, q, point = slots.make_drafts()
    assert torch.equal(q[0, 3], p[0, source])
    assert torch.equal(q[1, 1], p[1, source])
    assert not point[0, 3]
    e = slots.noise.exponential("draft race", slots.index, 5)
    assert draft[0, 3] == sample_token(p[0, source], e[0, 3])
    shared, p, _ = advance_window(init, [1, 3], shared=True)
    assert shared.make_drafts().tokens[0, 3] == sample_token(p[0, source], shared.draw_exponentials()[0, 3])


def test_refinement_saves_passes():
    """Teng et al. 2024, fig. 14, without eq. 3; on a model whose distribution depends weakly on the past."""
    V, L = 4, 6
    weak = make_table(V, 1, seed=3, scale=2.0)[:1].expand(count_prefixes(V, L), -1) + 0.2 * make_table(V, L)
    with_it, without = (
        decode_table("sjd", weak, L, 2000, window=6, refine=r).nfe.float().mean() for r in (True, False)
    )
    assert with_it < without - 0.5


def test_random_drafts_are_accepted_more_often_against_the_uniform_distribution():
    """GSD supplement, Alg. 1, line 3; a window of one draws a token in each pass whatever its draft."""
    even = make_table(8, 6, scale=0.3)
    uniform, point = (decode_table("sjd", even, 6, 2000, window=4, random=r).nfe for r in ("uniform", "point"))
    assert uniform.float().mean() < point.float().mean() - 0.5
    assert (decode_table("sjd", even, 6, 50, window=1, random="uniform").nfe == 6).all()


def test_forced_tokens_cost_plain_sampling_no_pass():
    forced = torch.tensor([2, -1, 2, 2, -1, 0])
    decoded = decode_table("ar", make_table(3, 6), 6, 50, forced=forced)
    assert (decoded.nfe == 2).all()
    assert (decoded.tokens[:, forced >= 0] == forced[forced >= 0]).all()


GROUPS = [(1, "clip"), (2, "clip"), (5, "clip"), (6, "plain"), (40, "clip")]


def draw_groups(G):
    """Draw distributions [3, 4, 12], drafts [3, 4] and vectors [12, 2] by the seed G."""
    generator = torch.Generator().manual_seed(G)
    p = torch.rand(3, 4, 12, generator=generator, dtype=torch.float64).softmax(-1)
    draft = torch.randint(12, (3, 4), generator=generator)
    return p, draft, torch.rand(12, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("G", "border", "odd"), [(*one, odd) for odd in ("full", "printed") for one in GROUPS] + [(5, "plain", "printed")]
)
def test_groups_equal_those_of_the_papers_loop(G, border, odd):
    """GSD supplement, Alg. 2, lines 2 to 11, written out. Its slice of G = 1 is empty: then the draft is alone."""
    delta, d = 0.08, 0.9
    p, draft, vectors = draw_groups(G)
    members, counts = find_groups(p, draft, G, delta, d, vectors, border, odd)
    for b in range(3):
        for w in range(4):
            x, probs = int(draft[b, w]), p[b, w]
            order = probs.argsort().tolist()
            rank = order.index(x)
            low, high = rank - G // 2, rank - G // 2 + G if odd == "full" else max(rank + G // 2, rank + 1)
            neighbours = order[max(low, 0) : high] if border == "clip" or low >= 0 else [x]
            likely = [c for c in neighbours if abs(probs[c] - probs[x]) <= delta]
            expected = {c for c in likely if (vectors[c] - vectors[x]).norm() <= d}
            assert set(members[b, w][counts[b, w]].tolist()) == expected
            assert int(counts[b, w].sum()) == len(expected)


def test_a_tree_of_too_many_nodes_is_refused_before_it_is_made():
    with pytest.raises(DecodingError, match="branches 15, depth 6: a tree of 12204241 nodes; allowed: at most 4096"):
        make_layout(15, 6, 50)
