"""The long layer: laws that are the forward algorithm's, correct decoders at their own options, faults of far away."""

import numpy as np
import pytest
import torch

from parity.base.errors import ParityError
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.mtj import mtj
from parity.decoders.discrete.sjd import sjd
from parity.equality.exact import exact
from parity.equality.faults import discrete as faults
from parity.equality.faults import planted
from parity.equality.martingale_tests import TESTS, spread
from parity.equality.targets.discrete import long_targets
from parity.models.discrete.hidden import HashedTable, HiddenMarkov, Law, chain, counter
from parity.models.discrete.tabular import joint

OPEN = torch.full((4,), -1)


def law_of(rows, columns, seed=0):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize(
    "law",
    [Law(law_of(1, 3)[0], law_of(3, 3), law_of(3, 2, 1)), chain(law_of(4, 2).view(2, 2, 2)), counter(law_of(3, 2))],
    ids=["hidden", "order 2", "counter"],
)
def test_a_hole_is_summed_over_and_a_token_fed_again_replaces_the_first(law):
    """By the model's own joint, which it gives token by token."""
    full = joint(HiddenMarkov(law, 4, 16, 4, OPEN), 2, 4).view(2, 2, 2, 2).numpy()
    model = HiddenMarkov(law, 4, 1, 4, OPEN)
    feed = lambda tokens, at: model.logits(torch.tensor([tokens]), torch.tensor([at])).softmax(-1)[0, -1].numpy()  # noqa: E731
    assert full.sum() == pytest.approx(1)
    feed([0], [-1])
    hole = full[1, :, 1, :].sum(0)
    np.testing.assert_allclose(feed([1, 1], [0, 2]), hole / hole.sum(), atol=1e-14)
    np.testing.assert_allclose(feed([0, 1], [0, 1]), (full[0, 1].sum(1) / full[0, 1].sum()), atol=1e-14)


def test_trees_are_the_chain_of_their_paths():
    """Drafts verified in a tree, kept or not, leave plain decoding's tokens under the same noise."""
    for t in (t for t in long_targets({"window": 8}, 2_000) if not t.name.startswith("hash")):  # large; by itself below
        same = t.draw(mtj, 0, 0, {"window": 8, "branches": 8, "depth": 3}).tokens == t.draw(ar, 0, 0, {}).tokens
        assert same.all(), t.name


def test_a_correct_decoder_passes_at_its_own_window():
    found = exact(sjd, long_targets({"window": 16}, 20_000), {"window": 16}, seeds=[0], family="all", layer="long")
    assert {r["layer"] for r in found} == {"long"} and len({r["model"] for r in found}) == 7
    assert {r["test"] for r in found} == set(TESTS) - {"support", "PIT", "order"}
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert all(0 < r["minimum_detectable_effect"] < 1 for r in found if r["p_value"] is not None)


@pytest.mark.parametrize("name", ["sjd: beyond 5", "sjd: tolerance", "sjd: one in 1000", "sjd: top-k"])
def test_faults_that_begin_late_or_lie_far_are_found(name):
    found = planted((t for t in faults.long_trials(65_536) if t.method == name), [0])
    assert {r["as_required"] for r in found} == {True}


def test_a_test_sees_what_it_is_for():
    """The last token alone by positions, shared rows by rows, the window's border by slots, reuse by distances."""
    seers = {"sjd: last": "positions", "ar: twins": "rows", "sjd: border": "slots", "sjd: late reuse": "distances"}
    for name, test in seers.items():
        trial = next(t for t in faults.long_trials(65_536) if t.method == name)
        assert [r["verdict"] for r in trial.sample(1) if r["test"] == test] == ["rejected"], name


def test_an_impossible_token_is_an_error_for_the_lossless_and_a_rejection_for_others():
    some = [t for t in long_targets({"window": 8}, 10_000) if t.name.startswith("order 2")]
    loose = faults.with_logits(sjd, lambda model, *asked: torch.zeros_like(model.logits(*asked)))
    with pytest.raises(ParityError, match=r"model order 2 4x64, row \d+, position \d+: token \d of probability zero"):
        exact(loose, some, {"window": 8}, family="all", layer="long")
    found = exact(loose, some, {"window": 8}, claim="lossy", method="loose", seeds=[0], family="all", layer="long")
    (support,) = (r for r in found if r["test"] == "support")
    assert support["verdict"] == "rejected" and "have probability zero" in support["note"]


def test_a_hashed_law_is_of_the_whole_prefix_and_a_tree_of_paths():
    """One token long ago changes it, a hole is passed over, and a tree's node has the law of its path alone."""
    table = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = lambda: HashedTable(table, 6, 1, 6, torch.full((6,), -1))  # noqa: E731

    def after(*tokens):
        return made().logits(torch.tensor([[0, *tokens]]), torch.arange(-1, len(tokens))[None])[0, -1]

    assert (after(3, 1, 4, 1, 2) != after(2, 1, 4, 1, 2)).all()
    holed = made()
    holed.logits(torch.tensor([[0, 3]]), torch.tensor([[-1, 0]]))
    assert (holed.logits(torch.tensor([[1]]), torch.tensor([[3]]))[0, 0] == after(3, 1)).all()
    tree = made()
    tree.logits(torch.tensor([[0]]), torch.tensor([[-1]]))
    nodes = tree.tree(torch.tensor([[3, 1, 2, 4]]), torch.tensor([[0, 1, 1, 2]]), torch.tensor([[-1, 0, 0, 1]]))[0]
    for node, path in enumerate(([3], [3, 1], [3, 2], [3, 1, 4])):
        assert (nodes[node] == after(*path)).all()


def test_the_spread_of_a_hundred_sequences_is_rejected_as_often_as_its_level_says():
    """Squares are skewed: a plain z of them rejects 45 of these 2,000 at .01."""
    z = np.random.default_rng(0).normal(size=(2000, 100))
    p = np.array([spread("long", own, np.ones(100))["p_value"] for own in z])
    assert 90 <= (p <= 0.05).sum() <= 125 and 8 <= (p <= 0.01).sum() <= 32
    wider = [spread("long", 1.4 * own, np.ones(100))["p_value"] for own in z[:200]]
    assert np.mean(np.array(wider) <= 0.05) > 0.8
