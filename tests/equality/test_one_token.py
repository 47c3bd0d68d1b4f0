"""The law of one token: that of the target passes, that of the draft is rejected, on a law that is known."""

import numpy as np
import pytest
import torch

from parity.decoders.continuous.cspd import cspd
from parity.decoders.continuous.mar import mar
from parity.equality.layers.continuous import one_token
from parity.models.continuous.protocol import Pair
from parity.models.continuous.tabular import TabularMixture, random_mixture

ONE = {"gamma": 1, "prefill": 0.0}


@pytest.fixture
def conditions():
    """An image of three tokens of two numbers, cut at its first place and at its last."""
    pair = Pair(*(TabularMixture(random_mixture(np.random.default_rng(s), 3, 3, 2), 1) for s in (0, 1)))
    image = torch.from_numpy(np.random.default_rng(5).standard_normal((3, 2))), torch.tensor([2, 0, 1])
    return [(pair, (*image, place)) for place in (0, 2)]


def as_drafted(models, start, *, noise):
    return mar(Pair(models.draft), start, noise=noise)


@pytest.mark.parametrize(
    ("decoder", "options", "wrong"), [(mar, {}, False), (cspd, ONE, False), (as_drafted, {}, True)]
)
def test_a_draft_is_told_from_its_target(conditions, decoder, options, wrong):
    found = one_token.compare_conditions(
        conditions, decoder, options, 256, (11, 13), model="tabular", method="m", key="k", seed=0
    )
    tests = [r for r in found if r["decides"]]
    assert any(r["verdict"] == "rejected" for r in tests) == wrong
    assert {r["repeat"] for r in tests} == ({0, 1} if wrong else {0}) and len(tests) == 4 * (1 + wrong)
    family = [
        r for r in tests if r["repeat"] == 0
    ]  # over both places: two tests of one place give a factor of 2 at most
    assert all(r["p_holm"] >= r["p_value"] for r in family) and max(r["p_holm"] / r["p_value"] for r in family) > 2
    assert {r["model"] for r in found} == {f"tabular, condition {c}, place {p}" for c, p in ((0, 0), (1, 2))}
    assert {r["test"] for r in found if not r["decides"]} == {"mean shift", "spread ratio"}
