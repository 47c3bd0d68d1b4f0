"""Log-probabilities equal those of enumerated distributions; forced and excluded tokens; missing tokens of any-subset
models."""

import numpy as np
import pytest
import torch
from parity_decoders.protocols.anysubset import make_infilling

from parity.metrics import likelihood as likelihood_module
from parity.metrics.estimates import columns_of
from parity.metrics.likelihood import likelihood, log_probabilities, teacher_forced_logits
from parity.metrics.text_likelihood import joint_probs, log_probability
from parity.models.anysubset import tabular as anysubset
from parity.models.discrete.tabular import TabularModel, random_table
from tests.tables import compute_joint


def compute_logp(model, tokens):
    """Compute log-probabilities [B, L] of the tokens, NaN where they are forced."""
    return log_probabilities(teacher_forced_logits(model, tokens), tokens, model.forced)


@pytest.mark.parametrize("stretch", [likelihood_module.STRETCH, 3])
def test_perplexity_is_that_of_the_enumerated_distribution(stretch, monkeypatch):
    """Each sequence weighted by its probability gives exp of the entropy per token, however many positions a pass
    has."""
    monkeypatch.setattr(likelihood_module, "STRETCH", stretch)
    V, L = 3, 4
    table = random_table(V, L, torch.Generator().manual_seed(1))
    probs = compute_joint(TabularModel(table, L, V**L), V, L)
    sequences = torch.cartesian_prod(*[torch.arange(V)] * L)
    logp = compute_logp(TabularModel(table, L, V**L), sequences)
    assert torch.allclose(logp.sum(1).exp(), probs, atol=1e-12)
    drawn = torch.multinomial(probs, 20_000, replacement=True, generator=torch.Generator().manual_seed(2))
    figures = columns_of(likelihood(logp[drawn].numpy(), np.arange(20_000)))
    entropy = float(torch.exp(-(probs * probs.log()).sum() / L))
    assert abs(figures["perplexity"] - entropy) < 4 * figures["perplexity_se"]
    assert figures["excluded"] == 0


def test_forced_positions_have_no_likelihood():
    V, L = 3, 4
    forced = torch.tensor([-1, 2, -1, -1])
    model = TabularModel(random_table(V, L, torch.Generator().manual_seed(1)), L, 2, forced=forced)
    logp = compute_logp(model, torch.tensor([[0, 2, 1, 1], [1, 2, 0, 0]])).numpy()
    assert np.isnan(logp[:, 1]).all()
    assert np.isfinite(logp[:, [0, 2, 3]]).all()
    assert columns_of(likelihood(logp, np.arange(2)))["logp_mean"] == pytest.approx(np.nanmean(logp))
    with pytest.raises(ValueError, match="tokens: 3 positions; allowed: 4"):
        compute_logp(model, torch.zeros(2, 3))


def test_excluded_tokens_are_counted_and_left_out():
    logp = np.array([[-1.0, -np.inf], [-1.0, np.nan]])
    figures = columns_of(likelihood(logp, np.arange(2)))
    assert figures["excluded"] == pytest.approx(1 / 3)
    assert figures["logp_mean"] == -1


def test_log_p_of_missing_tokens_is_that_of_the_distribution():
    """The probabilities of all ways to fill in two rows of unequal length add up to 1."""
    V, N = 3, 4
    model = anysubset.TabularAnySubset(anysubset.random_table(V, N, torch.Generator().manual_seed(0)))
    tokens = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]])
    known_mask = torch.tensor([[False, True, False, False], [True, False, True, True]])
    start = make_infilling(tokens, known_mask, model.mask, model.vocab, torch.tensor([4, 3]))
    probs = anysubset.compute_joint_probs(model, start)
    total = torch.zeros(2)
    for number, (a, b, c) in enumerate(torch.cartesian_prod(*[torch.arange(V)] * 3)):
        filled = torch.stack([torch.stack([a, tokens[0, 1], b, c]), torch.stack([tokens[1, 0], a, *tokens[1, 2:]])])
        logp = log_probability(*joint_probs(model, start._replace(tokens=filled)))
        assert logp[0].exp() == pytest.approx(probs[number])
        total += logp.exp()
    assert total.tolist() == pytest.approx([1, 9])  # the second row does not read b and c
