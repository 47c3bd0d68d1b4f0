"""Long targets: laws that are those of a joint, correct decoders at their own options, faults of far away."""

import itertools

import numpy as np
import pytest
import torch
from parity_certify.import_by_name import import_named_module
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.diffusion import diffusion
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.mtj import mtj
from parity_decoders.discrete.sjd import sjd
from parity_decoders.protocols.continuous import Pair
from scipy import stats

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.equality.faults import anysubset as any_faults
from parity.equality.faults import discrete as faults
from parity.equality.martingale_tests import TESTS, spread
from parity.equality.targets.continuous import number_scores
from parity.models.anysubset import hidden
from parity.models.continuous.hidden import LongMixture, Regimes
from parity.models.discrete.tabular import HashedTable, HiddenMarkov, Law, compute_joint, make_chain, make_counter


def targets(kind, options, size, start=""):
    reach = {"positions": max(options.values(), default=0), "lag": 0, "steps": 0}
    return [
        t
        for t in import_named_module(f"parity.equality.targets.{kind}").long_targets(reach, size)
        if t.name.startswith(start)
    ]


def long(decoder, models, options, **values):
    return exact(decoder, models, options, family="all", layer="long", **values)


def law_of(*shape, seed=0, scale=1):
    laws = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return laws.mul(scale).softmax(-1)


# --- every kind


@pytest.mark.parametrize(
    ("kind", "decoder", "options", "size", "most"),
    [
        ("discrete", sjd, {"window": 16}, 20_000, 7),
        ("anysubset", assd, {"k": 5}, 8_000, 6),
        ("continuous", cspd, {"gamma": 4}, 6_400, 2),
    ],
)
def test_correct_decoders_pass_at_their_own_options(kind, decoder, options, size, most):
    models = targets(kind, options, size)[:most]
    found = long(decoder, models, options, seeds=[0])
    assert {r["layer"] for r in found} == {"long"} and len({r["model"] for r in found}) == most
    absent = {"discrete": {"PIT", "order"}, "anysubset": {"PIT"}, "continuous": {"order"}}[kind]
    assert {r["test"] for r in found} == set(TESTS) - {"support"} - absent
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert all(0 < r["minimum_detectable_effect"] < 1 for r in found if r["p_value"] is not None)
    assert {r["note"] for r in found if r["test"] == "batches"} == {"the same tokens in batches of 1, 3, 32"}


def any_word(model, *asked):
    """Laws [B, S, V + 1] that know of nothing impossible but the mask, which is last."""
    laws = model.laws(*asked)
    return torch.cat([torch.ones_like(laws[..., :-1]), laws[..., -1:]], -1) / (laws.shape[-1] - 1)


def any_token(model, *asked):
    return torch.zeros_like(model.logits(*asked))


def broken(models, start, *, noise):
    for step in mar(models, start, noise=noise):
        yield step._replace(tokens=step.tokens / 0)


@pytest.mark.parametrize(
    ("kind", "model", "decoder", "options", "said"),
    [
        ("discrete", "order 2 4x64", faults.with_logits(sjd, any_token), {"window": 8}, "token . of probability zero"),
        ("anysubset", "chain 8x64", any_faults.with_laws(assd, any_word), {"k": 5}, "token . of probability zero"),
        ("continuous", "regimes 64 x 1-D", broken, {}, ""),
    ],
)
def test_an_impossible_token_of_a_lossless_decoder_is_an_error(kind, model, decoder, options, said):
    """A prompt's words are none of its own."""
    with pytest.raises(ParityError, match=rf"model {model}, row \d+, position \d+: .*{said}"):
        long(decoder, targets(kind, options, 6_400, model), options)


def test_an_impossible_token_of_a_lossy_decoder_is_a_rejection():
    loose, options = faults.with_logits(sjd, any_token), {"window": 8}
    models = targets("discrete", options, 10_000, "order 2")
    found = long(loose, models, options, claim="lossy", method="loose", seeds=[0])
    (support,) = (r for r in found if r["test"] == "support")
    assert support["verdict"] == "rejected" and "have probability zero" in support["note"]


# --- discrete


OPEN = torch.full((4,), -1)


@pytest.mark.parametrize(
    "law",
    [
        Law(law_of(1, 3)[0], law_of(3, 3), law_of(3, 2, seed=1)),
        make_chain(law_of(4, 2).view(2, 2, 2)),
        make_counter(law_of(3, 2)),
    ],
    ids=["hidden", "order 2", "counter"],
)
def test_a_hole_is_summed_over_and_a_token_fed_again_replaces_the_first(law):
    """By the model's own joint, which it gives token by token."""
    full = compute_joint(HiddenMarkov(law, 4, 16, 4, OPEN), 2, 4).view(2, 2, 2, 2).numpy()
    model = HiddenMarkov(law, 4, 1, 4, OPEN)

    def feed(tokens, at):
        return model.logits(torch.tensor([tokens]), torch.tensor([at])).softmax(-1)[0, -1].numpy()

    assert full.sum() == pytest.approx(1)
    feed([0], [-1])
    hole = full[1, :, 1, :].sum(0)
    np.testing.assert_allclose(feed([1, 1], [0, 2]), hole / hole.sum(), atol=1e-14)
    np.testing.assert_allclose(feed([0, 1], [0, 1]), (full[0, 1].sum(1) / full[0, 1].sum()), atol=1e-14)


def test_trees_are_the_chain_of_their_paths():
    """Drafts verified in a tree, kept or not, leave plain decoding's tokens under the same noise."""
    for t in (t for t in targets("discrete", {"window": 8}, 2_000) if not t.name.startswith("hash")):  # by itself below
        same = t.draw(mtj, 0, 0, {"window": 8, "branches": 8, "depth": 3}).tokens == t.draw(ar, 0, 0, {}).tokens
        assert same.all(), t.name


def test_a_hashed_law_is_of_the_whole_prefix_and_a_tree_of_paths():
    """One token long ago changes it, a hole is passed over, and a tree's node has the law of its path alone."""
    table = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def begun(*tokens):
        model = HashedTable(table, 6, 1, 6, torch.full((6,), -1))
        return model, model.logits(torch.tensor([[0, *tokens]]), torch.arange(-1, len(tokens))[None])[0, -1]

    def after(*tokens):
        return begun(*tokens)[1]

    assert (after(3, 1, 4, 1, 2) != after(2, 1, 4, 1, 2)).all()
    holed, _ = begun(3)
    assert (holed.logits(torch.tensor([[1]]), torch.tensor([[3]]))[0, 0] == after(3, 1)).all()
    tree, _ = begun()
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


# --- any-subset


V, N = 2, 5
STEP = law_of(3, 3, seed=1, scale=2)
RULES = {
    "chain": hidden.Strided(law_of(2, 2, scale=2), N),
    "copy": hidden.Strided(law_of(2, 2, scale=2), N, 2),
    "parity": hidden.Parity(law_of(2, scale=2), law_of(2, seed=3, scale=2), 3, N),
    "hidden": hidden.Hidden(torch.linalg.matrix_power(STEP, 2**20)[0], STEP, law_of(3, 2, seed=2, scale=2)),
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
            own = rule.laws_given(torch.tensor([partial]), torch.tensor([at]))[0].numpy()
            np.testing.assert_allclose(own, law / law.sum(), atol=1e-12)
    two = hidden.compute_pair_law(rule, N).numpy()
    np.testing.assert_allclose(two[1, :, 4], joint.sum((0, 2, 3)) / joint.sum(), atol=1e-12)


def test_words_filled_in_at_one_step_are_found():
    found = long(diffusion, targets("anysubset", {}, 16_384, "copy"), {"steps": 8}, claim="lossy", seeds=[0])
    assert any(r["verdict"] == "rejected" for r in found)


# --- continuous


MOVE = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
REST = torch.tensor([0.4, 0.6], dtype=torch.float64)
MEANS, SCALES = (torch.tensor(v, dtype=torch.float64) for v in ([[-1.0, 0.5], [1.0, 0.0]], [[0.5, 1.0], [0.8, 0.6]]))
REGIMES = Regimes(REST, MOVE, MEANS, SCALES)


def by_paths(x, place, known):
    """Density of x[place] given x[:known], by the sum over all regimes."""

    def density(tokens):
        total = 0.0
        for z in itertools.product(range(2), repeat=place + 1):
            p = REST[z[0]] * np.prod([MOVE[a, b] for a, b in itertools.pairwise(z)])
            own = [stats.norm.pdf(x[i], MEANS[z[i]], SCALES[z[i]]).prod() for i in tokens]
            total += float(p) * np.prod(own)
        return total

    return density([*range(known), place]) / density(range(known))


def test_a_token_given_the_first_ones_is_of_the_joint_density():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 6, 2)))
    places, known = torch.tensor([[1, 3, 5], [2, 5, 4]]), torch.tensor([[1, 2, 2], [2, 5, 1]])
    law = LongMixture(REGIMES, 6).conditions(x, torch.arange(6).expand(2, -1), places, known)
    own = law.log_density(x.gather(1, places[..., None].expand(-1, -1, 2)).flatten(0, 1)).exp().view(2, 3)
    for b, j in itertools.product(range(2), range(3)):
        wanted = by_paths(x[b].numpy(), int(places[b, j]), int(known[b, j]))
        assert own[b, j] == pytest.approx(wanted, rel=1e-9)


def test_pits_are_uniform_and_log_p_has_its_mean_and_variance():
    x, first = torch.zeros(1, 1, 2, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64)
    law = REGIMES.compute_laws(x, first, first)
    rng, n = np.random.default_rng(0), 40_000
    k = rng.choice(2, n, p=law.log_weights[0].exp().numpy())
    y, law = torch.from_numpy(rng.normal(MEANS[k], SCALES[k])), law.rows(torch.zeros(n, dtype=torch.int64))
    pit, score, variance = number_scores(law, y).numpy()
    assert stats.kstest(pit.ravel(), "uniform").pvalue > 0.001
    for d in range(2):
        error = np.sqrt(variance[:, d].mean() / n)
        assert abs(score[:, d].mean()) < 4 * error
        assert np.mean(score[:, d] ** 2) == pytest.approx(variance[:, d].mean(), rel=0.06)
    moved = number_scores(law, y + 0.05).numpy()
    assert stats.kstest(moved[0, :, 0], "uniform").pvalue < 0.001  # a test that sees nothing would pass too


def test_drafts_kept_without_a_look_are_found_on_every_model():
    def kept(models, start, *, noise):
        return mar(Pair(models.draft), start, noise=noise)

    for t in targets("continuous", {}, 6_400):
        found = long(kept, [t], {}, seeds=[0])
        assert any(r["verdict"] == "rejected" for r in found), t.name
