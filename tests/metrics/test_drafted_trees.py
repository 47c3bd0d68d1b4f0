"""Observations after verification skipping: similarity of drafted trees, staleness of features, their figures."""

import numpy as np
import pytest
import torch
from parity_decoders.protocols.discrete import TreePass

from parity.metrics import drafted_trees


class Target:
    """A target with random features, a codebook and a drafter."""

    def __init__(self, rows: int, length: int, vocab: int = 64):
        g = torch.Generator().manual_seed(0)
        self.features = torch.randn(2 * rows, length + 1, 8, generator=g)  # unconditional rows are after the others
        self.codebook = torch.nn.functional.normalize(torch.randn(vocab, 5, generator=g), dim=-1)
        self.drafter = Drafter(vocab)

    def tree(self, tokens, positions, parents):
        return TreePass(torch.zeros(0), tokens, positions, parents, self.features[:, : tokens.shape[1]])

    def keep(self, tree, nodes):
        """Do nothing."""


class Drafter:
    """A drafter whose distribution is always the same."""

    def __init__(self, vocab: int):
        self.vocab = vocab

    def logits(self, tokens, positions, sources=None):
        return torch.zeros(*tokens.shape, self.vocab).index_put((torch.tensor(0),), torch.tensor(1.0))

    tree = logits


TREE = {"total": 12, "depth": 3, "top_k": 3, "decay": 0.9, "stride": 1}


@pytest.fixture
def observed():
    """A target, and what `observe` finds of the trees that its drafter drafts at every fourth position."""
    target = Target(3, 16)
    tokens = torch.randint(64, (3, 16), generator=torch.Generator().manual_seed(4))
    return target, *drafted_trees.observe(target, tokens, TREE, stride=4, furthest=5)


def test_cosines_compare_the_targets_features_by_distance(observed):
    target, similarity, cosines = observed
    features = target.features[:3, :16]
    for d in (1, 5):
        expected = torch.cosine_similarity(features[:, d:], features[:, :-d], dim=-1).mean(1)
        assert torch.allclose(cosines[:, d - 1], expected, atol=1e-6)
    assert cosines.shape == (3, 5)
    assert similarity.shape == (3, 3)


def test_figures_show_every_tree_and_distance(observed):
    _, similarities, cosines = observed
    similarity, staleness = drafted_trees.make_figures(similarities.numpy(), cosines.numpy(), "m", 4)
    assert len(similarity["data"]) == 9
    assert [r["x"] for r in staleness["data"]] == [1, 2, 3, 4, 5]
    first = staleness["data"][0]
    assert first["low"] < first["y"] < first["high"]
    assert first["y"] == pytest.approx(float(np.mean(cosines[:, 0].numpy())))
