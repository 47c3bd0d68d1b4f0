"""Tabular models have the conditionals of the enumerated distribution; filters, guidance and grammar of what is
sampled."""

import numpy as np
import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.protocols.anysubset import make_infilling

from parity.models.anysubset import tabular as anysubset
from parity.models.continuous.tabular import TabularMixture, random_mixture
from parity.models.discrete.tabular import (
    HiddenMarkov,
    TabularModel,
    compute_joint,
    count_prefixes,
    make_chain,
    random_table,
)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_tabular_mixture_has_its_mixtures_densities(dimensions):
    mixture, rng = random_mixture(np.random.default_rng(0), 3, 4, dimensions), np.random.default_rng(1)
    m, tokens = TabularMixture(mixture, 6), rng.standard_normal((6, 4, dimensions))
    positions = torch.arange(4).expand(6, -1)
    distribution = m.distribution(m.conditions(torch.from_numpy(tokens), positions, positions, positions), None)
    x = rng.standard_normal((6, 4, dimensions))
    densities = distribution.log_density(torch.from_numpy(x).flatten(0, 1)).exp().view(6, 4).numpy()
    for i in range(4):
        assert np.allclose(densities[:, i], mixture.density(tokens[:, :i], x[:, i]), rtol=1e-12)
        assert i == 0 or not np.allclose(densities[:, i], mixture.density(tokens[::-1, :i], x[:, i]))


@pytest.mark.parametrize("pair", [False, True])
def test_a_tables_joint_is_the_product_of_its_conditionals(pair):
    """Computed by hand over the prefixes of one sequence; a tree's branch is that sequence fed in turn."""
    V, L = 3, 3
    table = random_table(V, L, torch.Generator().manual_seed(0), pair=pair)
    first = table[0] if pair else table
    model = TabularModel(first, L, V**L)
    probs = compute_joint(model, V, L)
    assert float(probs.sum()) == pytest.approx(1)
    p = first.softmax(-1)
    sequence = (2, 0, 1)  # rows of the table are prefixes, by length, then by their code
    hand = p[0][2] * p[1 + 2][0] * p[1 + V + 2 * V + 0][1]
    assert float(probs[2 * 9 + 0 * 3 + 1]) == pytest.approx(float(hand))
    one = TabularModel(first, L, 1)
    tree = one.tree(torch.tensor([[0, *sequence[:2]]]), torch.tensor([[-1, 0, 1]]), torch.tensor([[-1, 0, 1]]))
    assert torch.allclose(tree.logits[0], torch.stack([first[0], first[1 + 2], first[1 + V + 2 * V]]))
    with pytest.raises(ValueError, match=f"expected {count_prefixes(V, 4)} for V=3, L=4"):
        TabularModel(first, 4, 1)


@pytest.mark.parametrize("consistent", [True, False])
def test_orders_agree_if_all_conditionals_have_one_joint(consistent):
    """The two masks of a text are filled in either order; a random table is inconsistent, as a network is."""
    make = anysubset.consistent_table if consistent else anysubset.random_table
    model = anysubset.TabularAnySubset(make(3, 3, torch.Generator().manual_seed(0)))
    start = make_infilling(torch.tensor([[1, 0, 0]]), torch.tensor([[True, False, False]]), 3, 4)
    probs = anysubset.compute_joint_probs(model, start).reshape(3, 3)
    reversed_start = start._replace(order=start.order[:, [0, 2, 1]])
    other_probs = anysubset.compute_joint_probs(model, reversed_start).reshape(3, 3).T
    assert probs.sum() == pytest.approx(1)
    assert np.allclose(probs, other_probs) == consistent
    tokens = torch.tensor([[1, 2, 0], [1, 0, 2]])
    two_rows = make_infilling(tokens, torch.tensor([[True, False, False]] * 2), 3, 4)
    assert anysubset.encode_rows(model, two_rows, tokens).tolist() == [2 * 3 + 0, 0 * 3 + 2]
    with pytest.raises(ValueError, match="row 1, position 2: token 3 is not in the vocabulary"):
        anysubset.encode_rows(model, two_rows, tokens + torch.tensor([[0], [1]]))


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
def test_guidance_interpolates_and_extrapolates_logits(scale):
    """The distribution is u + s (c - u) of a table whose second half is unconditional."""
    table = random_table(5, 2, torch.Generator().manual_seed(0), pair=True)
    sampled = Sampled(TabularModel(table, 2, 1), TokenSampling(guidance=scale))
    start = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    if scale == 1:  # the model has one row, so that asking for unconditional ones would fail
        sampled = Sampled(TabularModel(table[0], 2, 1), TokenSampling())
    probs = sampled.logits(*start)[0, 0].softmax(-1)
    conditional, unconditional = table[0, 0], table[1, 0]
    assert torch.allclose(probs, (unconditional + scale * (conditional - unconditional)).softmax(-1))


def test_grammar_forces_its_tokens_and_no_others():
    forced = torch.tensor([-1, 2, -1])
    model = TabularModel(random_table(4, 3, torch.Generator().manual_seed(0)), 3, 1, forced=forced)
    probs = Sampled(model, TokenSampling()).logits(torch.zeros(1, 3, dtype=torch.int64), torch.arange(-1, 2)[None])
    probs = probs.softmax(-1)[0]
    assert probs[1].tolist() == [0, 0, 1, 0]
    assert (probs[0] > 0).all()
    assert (probs[2] > 0).all()


def test_a_draft_model_without_a_drafter_keeps_nodes():
    """What it keeps, its next pass follows: `mtj_draft` keeps nodes of the draft model alone."""
    probs, drafts = (make_chain(torch.eye(3).roll(shift, 1).double()) for shift in (1, 2))
    draft = Sampled(HiddenMarkov(probs, 4, 1, 2, torch.full((4,), -1), drafts), TokenSampling()).draft
    assert draft is not None
    nodes = torch.arange(2)[None]
    draft.keep(draft.tree(torch.tensor([[0, 1]]), nodes - 1, nodes - 1), nodes)
    following = draft.logits(torch.tensor([[0]]), torch.tensor([[1]])).argmax(-1)
    assert following.tolist() == [[2]]  # two after the last token
