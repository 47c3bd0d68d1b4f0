"""The long layer of texts: laws that are those of a joint, correct decoders, small batches, another order."""

import itertools

import numpy as np
import pytest
import torch

from parity.base.errors import ParityError
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.diffusion import diffusion
from parity.equality.exact import exact
from parity.equality.faults.longanysubset import with_laws
from parity.equality.long.anysubset import mirrored, targets
from parity.models.anysubset.hidden import Hidden, LongSubset, Parity, Sharpened, Strided, drawn, pair_law

V, N = 2, 5


def law_of(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(2).softmax(-1)


def resting(table):
    return torch.linalg.matrix_power(table, 2**20)[0]


def chain_of(table, stride):
    def weight(x):
        p = [resting(table)[v] if i < stride else table[x[i - stride], v] for i, v in enumerate(x)]
        return float(torch.stack(p).prod())

    return weight


def parity_of(base, total, period):
    def weight(x):
        blocks = [x[i : i + period] for i in range(0, len(x) // period * period, period)]
        return float(base[list(x)].prod()) * float(np.prod([total[sum(b) % V] for b in blocks]))

    return weight


def hidden_of(begin, step, emit):
    def weight(x):
        paths = itertools.product(range(len(begin)), repeat=len(x))
        return sum(
            float(begin[h[0]] * emit[list(h), list(x)].prod() * step[list(h[:-1]), list(h[1:])].prod()) for h in paths
        )

    return weight


TABLE, STEP, EMIT, TOTAL = law_of(2, 2), law_of(3, 3, seed=1), law_of(3, 2, seed=2), law_of(2, seed=3)
RULES = {  # a rule, and the weight of a text that it must be the law of
    "chain": (Strided(TABLE, N), chain_of(TABLE, 1)),
    "copy": (Strided(TABLE, N, 2), chain_of(TABLE, 2)),
    "parity": (Parity(law_of(2), TOTAL, 3, N), parity_of(law_of(2), TOTAL, 3)),
    "hidden": (Hidden(resting(STEP), STEP, EMIT), hidden_of(resting(STEP), STEP, EMIT)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_word_given_any_subset_is_the_sum_over_the_others(name):
    rule, weight = RULES[name]
    cells = list(itertools.product(range(V), repeat=N))
    joint = np.array([weight(x) for x in cells]).reshape([V] * N)
    for partial in itertools.product(range(V + 1), repeat=N):
        for at in (i for i in range(N) if partial[i] == V):
            index = tuple(slice(None) if v == V else v for v in partial)
            others = tuple(k for k, i in enumerate(j for j in range(N) if partial[j] == V) if i != at)
            law = joint[index].sum(others)
            said = rule.laws_given(torch.tensor([partial]), torch.tensor([at]))[0].numpy()
            np.testing.assert_allclose(said, law / law.sum(), atol=1e-12)
    two = pair_law(rule, N).numpy()
    np.testing.assert_allclose(two[1, :, 4], joint.sum((0, 2, 3)) / joint.sum(), atol=1e-12)


def test_a_power_of_laws_is_of_no_joint():
    """Of one, p(a) p(b | a) would be p(b) p(a | b)."""
    text, ranks, none = torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), torch.zeros(1, dtype=torch.int64)

    def both(rule, order):
        p = LongSubset(rule).laws(text, torch.tensor([order]), none, ranks, ranks)[0]
        return p[0, text[0, order[0]]] * p[1, text[0, order[1]]]

    chain = Strided(law_of(3, 3), 2)
    for rule, same in ((chain, True), (Sharpened(chain, 2.0), False)):
        assert bool((both(rule, [0, 1]) - both(rule, [1, 0])).abs() < 1e-9) == same


def test_texts_of_a_rule_have_its_pairs():
    for t in targets({}, 6_400):
        if t.joint:
            x = drawn(t.rule, torch.rand(20_000, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
            two = pair_law(t.rule, 12).numpy()
            seen = np.histogram2d(x[:, 2], x[:, 11], t.rule.words, [[-0.5, t.rule.words - 0.5]] * 2)[0] / len(x)
            assert np.abs(seen - two[2, :, 11]).max() < 0.02, t.name


def test_correct_decoders_pass_and_one_at_a_step_too_many_does_not():
    found = exact(assd, targets({"k": 5}, 8_000), {"k": 5}, seeds=[0], family="all", layer="long")
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert {r["note"] for r in found if r["test"] == "batches"} == {"the same tokens in batches of 1, 3, 32"}
    few = [t for t in targets({}, 16_384) if t.name.startswith("copy")]
    found = exact(diffusion, few, {"steps": 8}, claim="lossy", seeds=[0], family="all", layer="long")
    assert any(r["verdict"] == "rejected" for r in found)


def any_word(laws, *_):
    """Laws [B, S, V + 1] that know of nothing impossible but the mask, which is last."""
    return torch.cat([torch.ones_like(laws[..., :-1]), laws[..., -1:]], -1) / (laws.shape[-1] - 1)


def test_a_word_of_probability_zero_is_an_error_and_the_prompt_is_none():
    (t,) = (t for t in targets({"k": 5}, 6_400) if t.name.startswith("chain"))
    with pytest.raises(ParityError, match=r"model chain 8x64, row \d+, position \d+: token \d of probability zero"):
        t.draw(with_laws(assd, any_word), 0, 0, {"k": 5}, strict=True)


def test_what_is_known_takes_no_part():
    """Words of the prompt changed in the data alone: no test counts them but as contexts."""
    (t,) = (t for t in targets({}, 6_400) if t.name.startswith("sharpened"))
    drawn_ = t.draw(assd, 0, 0, {"k": 5})
    laws = np.where(drawn_.known[..., None], 0.25, drawn_.laws)
    one, other = (t.rows_of(drawn_._replace(laws=x), "long", 0, 0) for x in (drawn_.laws, laws))
    assert one == other
    shown = np.where(drawn_.known[..., None], 0.0, drawn_.laws)
    assert t.rows_of(drawn_._replace(laws=shown, known=drawn_.known & False), "long", 0, 0) != one


def test_the_law_of_texts_filled_in_from_the_right_is_the_sum_over_them():
    """By all texts of five words, some known: one word's law given those before it. The chain's own has the same, its
    power another."""
    chain, partial = Strided(law_of(3, 3), N), torch.tensor([3, 3, 1, 3, 3])  # V stands for unknown
    free = [i for i in range(N) if partial[i] == 3]
    cells = torch.tensor([list(x) for x in itertools.product(range(3), repeat=N)])
    cells = cells[(cells == partial)[:, 2]]
    prompt = partial.expand(len(cells), N)
    for rule, same in ((chain, True), (Sharpened(chain, 2.0), False)):
        forth, back = (torch.ones(len(cells), dtype=torch.float64) for _ in range(2))
        for order, weight in ((free, forth), (free[::-1], back)):
            known = prompt.clone()
            for i in order:
                weight *= rule.laws_given(known, torch.full((len(cells),), i)).gather(1, cells[:, i : i + 1])[:, 0]
                known[:, i] = cells[:, i]
        said = mirrored(rule, cells, prompt)
        own = said.gather(2, cells[..., None])[..., 0][:, free].prod(1)
        torch.testing.assert_close(own, back)
        assert torch.allclose(back, forth) == same
