"""From logits to the law that is sampled: filters, guidance, grammar."""

import pytest
import torch
from parity_decoders.sampling import Sampled, TokenSampling, top_k_filter, top_p_filter

from parity.models.discrete.tabular import TabularModel, random_table


def test_top_k_and_top_p_keep_the_likeliest_tokens():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert torch.isfinite(top_k_filter(logits, 2)).tolist() == [[True, True, False, False]]
    assert torch.isfinite(top_k_filter(logits, 99)).all()
    mass = logits.softmax(-1)[0].cumsum(0)
    assert torch.isfinite(top_p_filter(logits, mass[1].item() - 1e-6)).sum() == 2
    assert torch.isfinite(top_p_filter(logits, 1e-9)).sum() == 1


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
def test_guidance_interpolates_and_extrapolates_logits(scale):
    """The law is u + s (c - u) of a table whose second half is unconditional."""
    table = random_table(5, 2, torch.Generator().manual_seed(0), pair=True)
    sampled = Sampled(TabularModel(table, 2, 1), TokenSampling(guidance=scale))
    start = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    if scale == 1:  # the model has one row, so that asking for unconditional ones would fail
        sampled = Sampled(TabularModel(table[0], 2, 1), TokenSampling())
    law = sampled.logits(*start)[0, 0].softmax(-1)
    conditional, unconditional = table[0, 0], table[1, 0]
    assert torch.allclose(law, (unconditional + scale * (conditional - unconditional)).softmax(-1))


def test_filters_apply_after_the_temperature():
    table = random_table(6, 2, torch.Generator().manual_seed(0))
    start = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    law = Sampled(TabularModel(table, 2, 1), TokenSampling(temperature=0.5, top_k=3)).logits(*start)[0, 0].softmax(-1)
    likeliest = (table[0] / 0.5).topk(3).indices
    assert set(law.nonzero().flatten().tolist()) == set(likeliest.tolist())
    assert torch.allclose(law[likeliest], (table[0] / 0.5)[likeliest].softmax(-1))


def test_grammar_forces_its_tokens_and_no_others():
    forced = torch.tensor([-1, 2, -1])
    model = TabularModel(random_table(4, 3, torch.Generator().manual_seed(0)), 3, 1, forced=forced)
    law = Sampled(model, TokenSampling()).logits(torch.zeros(1, 3, dtype=torch.int64), torch.arange(-1, 2)[None])
    law = law.softmax(-1)[0]
    assert law[1].tolist() == [0, 0, 1, 0]
    assert (law[0] > 0).all()
    assert (law[2] > 0).all()


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_top_p_of_a_large_vocabulary_is_that_of_a_stable_sort(scale):
    """Steps of a quarter, so that most tokens are tied. The sort is stable, so that of equal tokens the first are
    kept."""
    torch.manual_seed(0)
    logits = (scale * torch.randn(2, 2, 40_000) * 4).round() / 4
    ordered, order = logits.double().sort(descending=True, stable=True)
    law = ordered.softmax(-1)
    kept = torch.empty_like(order, dtype=torch.bool).scatter_(-1, order, law.cumsum(-1) - law < 0.8)
    found = top_p_filter(logits, 0.8)
    assert torch.equal(found.isfinite(), kept) and torch.equal(found[kept], logits[kept])
