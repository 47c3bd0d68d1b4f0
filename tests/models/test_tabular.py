"""Tabular models have the conditionals of the enumerated distribution; filters, guidance and grammar of what is
sampled."""

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled

from parity.models.discrete.tabular import (
    HiddenMarkov,
    TabularModel,
    make_chain,
    random_table,
)


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
