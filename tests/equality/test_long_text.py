"""The long layer of texts: laws that are those of a joint, correct decoders, small batches, another order."""

import itertools

import numpy as np
import pytest
import torch

from parity.base.errors import ParityError
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.diffusion import diffusion
from parity.equality.exact import exact
from parity.equality.faults.anysubset import with_laws
from parity.equality.targets.anysubset import long_targets
from parity.models.anysubset.hidden import Hidden, Parity, Strided, pair_law

V, N = 2, 5


def law_of(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(2).softmax(-1)


def resting(table):
    return torch.linalg.matrix_power(table, 2**20)[0]


STEP = law_of(3, 3, seed=1)
RULES = {
    "chain": Strided(law_of(2, 2), N),
    "copy": Strided(law_of(2, 2), N, 2),
    "parity": Parity(law_of(2), law_of(2, seed=3), 3, N),
    "hidden": Hidden(resting(STEP), STEP, law_of(3, 2, seed=2)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_word_given_any_subset_is_the_sum_over_the_others(name):
    """Those of one joint: the product of the words' laws from left to right."""
    rule, cells = RULES[name], torch.cartesian_prod(*[torch.arange(V)] * N)
    joint = torch.ones(len(cells), dtype=torch.float64)
    for i in range(N):
        known = cells.masked_fill(torch.arange(N) >= i, V)
        joint *= rule.laws_given(known, torch.full((len(cells),), i)).gather(1, cells[:, i : i + 1])[:, 0]
    joint = joint.view([V] * N).numpy()
    for partial in itertools.product(range(V + 1), repeat=N):
        for at in (i for i in range(N) if partial[i] == V):
            index = tuple(slice(None) if v == V else v for v in partial)
            others = tuple(k for k, i in enumerate(j for j in range(N) if partial[j] == V) if i != at)
            law = joint[index].sum(others)
            said = rule.laws_given(torch.tensor([partial]), torch.tensor([at]))[0].numpy()
            np.testing.assert_allclose(said, law / law.sum(), atol=1e-12)
    two = pair_law(rule, N).numpy()
    np.testing.assert_allclose(two[1, :, 4], joint.sum((0, 2, 3)) / joint.sum(), atol=1e-12)


def test_correct_decoders_pass_and_one_at_a_step_too_many_does_not():
    found = exact(assd, long_targets({"k": 5}, 8_000), {"k": 5}, seeds=[0], family="all", layer="long")
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert {r["note"] for r in found if r["test"] == "batches"} == {"the same tokens in batches of 1, 3, 32"}
    few = [t for t in long_targets({}, 16_384) if t.name.startswith("copy")]
    found = exact(diffusion, few, {"steps": 8}, claim="lossy", seeds=[0], family="all", layer="long")
    assert any(r["verdict"] == "rejected" for r in found)


def any_word(model, *asked):
    """Laws [B, S, V + 1] that know of nothing impossible but the mask, which is last."""
    laws = model.laws(*asked)
    return torch.cat([torch.ones_like(laws[..., :-1]), laws[..., -1:]], -1) / (laws.shape[-1] - 1)


def test_a_word_of_probability_zero_is_an_error_and_the_prompt_is_none():
    (t,) = (t for t in long_targets({"k": 5}, 6_400) if t.name.startswith("chain"))
    with pytest.raises(ParityError, match=r"model chain 8x64, row \d+, position \d+: token \d of probability zero"):
        t.draw(with_laws(assd, any_word), 0, 0, {"k": 5}, strict=True)
