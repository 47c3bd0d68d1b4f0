"""What speculators learn: divergences from the target's distribution, of whole rows and of places of many rows."""

from types import SimpleNamespace

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.speculators import Heads
from torch import nn

from parity.train import losses

DIM, VOCAB, LENGTH, WIDTH, ROWS = 8, 11, 12, 4, 3


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_logits_of_guided_features_are_guided_logits():
    """Only a linear output may be computed of guided features: of another one, logits are guided."""
    features, scale = torch.randn(2 * ROWS, LENGTH, DIM), torch.rand(ROWS, 1, 1)
    linear, curved = nn.Linear(DIM, VOCAB), nn.Sequential(nn.Tanh(), nn.Linear(DIM, VOCAB))
    for output in (linear, curved):
        conditional, unconditional = output(features).chunk(2)
        expected = unconditional + scale * (conditional - unconditional)
        assert torch.allclose(losses.guide(output, features, scale), expected, atol=1e-5)
    mixed = torch.lerp(*reversed(features.chunk(2)), scale)
    assert not torch.allclose(losses.guide(curved, features, scale), curved(mixed), atol=1e-2)


@pytest.mark.parametrize("free", [None, torch.arange(LENGTH) % WIDTH != WIDTH - 1])
def test_all_places_of_rows_have_the_divergences_of_whole_rows(free):
    heads, output = Heads(SimpleNamespace(dim=DIM, hidden=16, eps=1e-5)), nn.Linear(DIM, VOCAB)
    probs = losses.make_distributions(TokenSampling(guidance=1.7, temperature=0.8, top_k=5, top_p=1.0))
    features, table = torch.randn(2, ROWS, LENGTH, DIM), torch.randn(VOCAB, DIM)
    tokens = torch.randint(VOCAB, (ROWS, LENGTH))
    rows, places = (x.flatten() for x in torch.meshgrid(torch.arange(ROWS), torch.arange(LENGTH - 1), indexing="ij"))

    def measure(places):
        of_rows = rows[: len(places)]
        return losses.measure_heads_at(
            heads, output, table, lambda at: features[:, of_rows, at], tokens[of_rows], places, probs, WIDTH, free
        )

    p = probs[0](output, features.flatten(0, 1))
    embeddings = table[tokens[:, :-1]].repeat(2, 1, 1)
    whole = losses.measure_heads(
        heads, lambda guess: probs[1](output, guess), features.flatten(0, 1), embeddings, p, WIDTH, free
    )
    at, some = measure(places), measure(places[: LENGTH // 2])
    for name, nats in whole.items():
        assert torch.allclose(at[name], nats, atol=1e-5)
        assert not torch.allclose(some[name], nats, atol=1e-3)
