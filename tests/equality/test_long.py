"""The long layer: laws that are the forward algorithm's, correct decoders at their own options, faults of far away."""

import itertools

import numpy as np
import pytest
import torch

from parity.base.errors import ParityError
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.mtj import mtj
from parity.decoders.discrete.sjd import sjd
from parity.decoders.discrete.zipar import zipar
from parity.equality.exact import exact
from parity.equality.faults import long as faults
from parity.equality.faults import planted
from parity.equality.long.discrete import targets
from parity.equality.martingale_tests import TESTS, spread
from parity.models.discrete.hidden import Guided, HashedTable, HiddenMarkov, Law, chain, counter
from parity.models.discrete.sampling import Sampled, TokenSampling
from parity.models.discrete.tabular import joint

OPEN = torch.full((4,), -1)


def law_of(rows, columns, seed=0):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def by_paths(law, length):
    """The joint law by the sum over all paths of states: no forward algorithm."""
    H, V = law.emit.shape
    result = np.zeros([V] * length)
    for states in itertools.product(range(H), repeat=length):
        p = law.begin[states[0]].item() * np.prod([law.step[a, b].item() for a, b in itertools.pairwise(states)])
        emitted = [law.emit[s].numpy() for s in states]
        result += p * np.einsum(*itertools.chain(*((e, [i]) for i, e in enumerate(emitted))), list(range(length)))
    return result.ravel()


@pytest.mark.parametrize(
    "law",
    [Law(law_of(1, 3)[0], law_of(3, 3), law_of(3, 2, 1)), chain(law_of(4, 2).view(2, 2, 2)), counter(law_of(3, 2))],
    ids=["hidden", "order 2", "counter"],
)
def test_the_models_law_is_the_sum_over_paths(law):
    model = HiddenMarkov(law, 4, 16, 4, OPEN)
    np.testing.assert_allclose(joint(model, 2, 4).numpy(), by_paths(law, 4), atol=1e-14)


def test_a_hole_is_summed_over_and_a_token_fed_again_replaces_the_first():
    law = Law(law_of(1, 3)[0], law_of(3, 3), law_of(3, 2, 1))
    model = HiddenMarkov(law, 4, 1, 4, OPEN)
    full = by_paths(law, 4).reshape(2, 2, 2, 2)
    feed = lambda tokens, at: model.logits(torch.tensor([tokens]), torch.tensor([at])).softmax(-1)[0, -1].numpy()  # noqa: E731
    feed([0], [-1])
    hole = full[1, :, 1, :].sum(0)
    np.testing.assert_allclose(feed([1, 1], [0, 2]), hole / hole.sum(), atol=1e-14)
    np.testing.assert_allclose(feed([0, 1], [0, 1]), (full[0, 1].sum(1) / full[0, 1].sum()), atol=1e-14)


def test_pairs_and_conditionals_of_a_target_are_of_one_law():
    """Forced tokens too: means of the conditionals over many sequences are the marginals of the pairs."""
    for t in (t for t in targets({}, 200_000) if t.of is not None):
        drawn = t.draw(ar, 0, 0, {})
        assert np.allclose(t.law.sum((1, 3)), 1) and np.abs(drawn.laws.sum(-1) - 1).max() < 1e-9
        single = np.stack([np.diag(t.law[i, :, i]) for i in range(t.length)])
        assert np.abs(drawn.laws.mean(0) - single).max() < 0.03
        assert (drawn.tokens[:, t.forced >= 0] == t.forced[t.forced >= 0].numpy()).all()


def test_trees_are_the_chain_of_their_paths():
    """Drafts verified in a tree, kept or not, leave plain decoding's tokens under the same noise."""
    for t in (t for t in targets({"window": 8}, 2_000) if not t.name.startswith("hash")):  # large; by itself below
        same = t.draw(mtj, 0, 0, {"window": 8, "branches": 8, "depth": 3}).tokens == t.draw(ar, 0, 0, {}).tokens
        assert same.all(), t.name


def test_a_correct_decoder_passes_at_its_own_window():
    found = exact(sjd, targets({"window": 16}, 20_000), {"window": 16}, seeds=[0], family="all", layer="long")
    assert {r["layer"] for r in found} == {"long"} and len({r["model"] for r in found}) == 7
    assert {r["test"] for r in found} == set(TESTS) - {"support", "PIT", "order"}
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert all(0 < r["minimum_detectable_effect"] < 1 for r in found if r["p_value"] is not None)


def test_zipar_is_found_at_its_own_distance_and_is_plain_decoding_at_a_row():
    for ahead, wanted in ((8, True), (16, False)):
        some = [t for t in targets({"ahead": 8}, 20_000) if t.name.startswith("counter")]
        found = exact(zipar, some, {"ahead": ahead}, claim="lossy", seeds=[0], family="all", layer="long")
        assert any(r["verdict"] == "rejected" for r in found) == wanted


@pytest.mark.parametrize("name", ["sjd: beyond 5", "sjd: tolerance", "sjd: one in 1000", "sjd: top-k"])
def test_faults_that_begin_late_or_lie_far_are_found(name):
    found = planted((t for t in faults.trials(65_536, [0]) if t.method == name), [0])
    assert {r["as_required"] for r in found} == {True}


def test_a_test_sees_what_it_is_for():
    """The last token alone by positions, shared rows by rows, the window's border by slots, reuse by distances."""
    seers = {"sjd: last": "positions", "ar: twins": "rows", "sjd: border": "slots", "sjd: late reuse": "distances"}
    for name, test in seers.items():
        trial = next(t for t in faults.trials(65_536, [1]) if t.method == name)
        assert [r["verdict"] for r in trial.sample(1) if r["test"] == test] == ["rejected"], name


def test_an_impossible_token_is_an_error_for_the_lossless_and_a_rejection_for_others():
    some = [t for t in targets({"window": 8}, 10_000) if t.name.startswith("order 2")]
    loose = faults.with_laws(sjd, lambda logits, _: torch.zeros_like(logits))
    with pytest.raises(ParityError, match=r"model order 2 4x64, row \d+, position \d+: token \d of probability zero"):
        exact(loose, some, {"window": 8}, family="all", layer="long")
    found = exact(loose, some, {"window": 8}, claim="lossy", method="loose", seeds=[0], family="all", layer="long")
    (support,) = (r for r in found if r["test"] == "support")
    assert support["verdict"] == "rejected" and "have probability zero" in support["note"]


def test_the_table_is_read_through_a_hash_of_all_before_and_a_hole_is_passed_over():
    """Naively: the hash of each whole prefix; one token long ago changes the law, and a tree's nodes have their own."""
    table = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = torch.tensor([[0, 3, 1, 4, 1, 2]])
    at = torch.arange(-1, 5)[None]
    made = lambda: HashedTable(table, 6, 1, 6, torch.full((6,), -1))  # noqa: E731

    def naive(tokens):
        state = 1
        for v in tokens:
            state = (31 * state + v + 1) % 65_537
        return table[state % 64]

    said = made().logits(row, at)[0]
    for i in range(6):
        assert (said[i] == naive(row[0, 1 : i + 1].tolist())).all()
    other = row.clone()
    other[0, 1] = 2
    assert (made().logits(other, at)[0, -1] != said[-1]).all()
    holed = made()
    holed.logits(row[:, :2], at[:, :2])
    assert (holed.logits(row[:, 4:5], at[:, 4:5])[0, 0] == naive([3, 1])).all()  # places 1 and 2 were never fed
    tree = made()
    tree.logits(row[:, :1], at[:, :1])
    parents = torch.tensor([[-1, 0, 0, 1]])
    nodes = tree.tree(torch.tensor([[3, 1, 2, 4]]), torch.tensor([[0, 1, 1, 2]]), parents)[0]
    for node, path in enumerate(([3], [3, 1], [3, 2], [3, 1, 4])):
        assert (nodes[node] == naive(path)).all()


def test_a_guided_models_law_is_that_of_its_halves():
    laws = [chain(law_of(4, 4, seed)) for seed in (0, 1)]
    row, at = torch.tensor([[0, 2, 1], [0, 3, 3]]), torch.arange(-1, 2).expand(2, -1)
    c, u = (HiddenMarkov(law, 4, 2, 4, OPEN).logits(row, at) for law in laws)
    both = Sampled(Guided(*(HiddenMarkov(law, 4, 2, 4, OPEN) for law in laws)), TokenSampling(guidance=2.0))
    torch.testing.assert_close(both.logits(row, at), 2 * c - u)
    assert (both.logits(row, at) - c).abs().max() > 0.01


@pytest.mark.slow
def test_every_test_has_its_size():
    """Of 8 samples of plain decoding: at most 2 families rejected at level .05 (p = .006 if the size is right)."""
    some, rejected = targets({}, 8_192), 0
    for seed in range(8):
        found = exact(ar, some, {}, method="ar", seeds=[1000 + seed], family="all", layer="long")
        rejected += any(r["verdict"] == "rejected" for r in found)
    assert rejected <= 2


def test_the_spread_of_a_hundred_sequences_is_rejected_as_often_as_its_level_says():
    """Squares are skewed: a plain z of them rejects 45 of these 2,000 at .01."""
    z = np.random.default_rng(0).normal(size=(2000, 100))
    p = np.array([spread("long", own, np.ones(100))["p_value"] for own in z])
    assert 90 <= (p <= 0.05).sum() <= 125 and 8 <= (p <= 0.01).sum() <= 32
    wider = [spread("long", 1.4 * own, np.ones(100))["p_value"] for own in z[:200]]
    assert np.mean(np.array(wider) <= 0.05) > 0.8
