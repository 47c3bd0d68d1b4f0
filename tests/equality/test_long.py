"""Long targets: distributions that are those of a joint, correct decoders at their own options, faults of far away."""

import itertools
from dataclasses import replace

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
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.discrete.spec import spec
from parity_decoders.protocols.discrete import FINAL
from scipy import stats

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.equality.martingale_tests import TESTS, make_spread_row, sum_products
from parity.equality.targets.continuous import score_numbers
from parity.equality.targets.discrete import long_targets, make_real_vocabulary
from parity.models.anysubset import hidden
from parity.models.continuous.hidden import LongMixture, Regimes
from parity.models.discrete.tabular import (
    HashedTable,
    HiddenDistribution,
    HiddenMarkov,
    make_chain,
    make_counter,
)
from tests.equality.faults import anysubset as any_faults
from tests.equality.faults import discrete as faults
from tests.tables import compute_joint, keep_drafts


def make_targets(kind, options, size, start=""):
    """Make the long targets of a kind whose names begin with `start`, with `size` tokens, for these options."""
    reach = {"positions": max(options.values(), default=0), "lag": 0, "steps": 0}
    long_targets = import_named_module(f"parity.equality.targets.{kind}").long_targets
    return [t for t in long_targets(reach, size) if t.name.startswith(start)]


def run_long(decoder, models, options, **values):
    """Test a decoder on long models and return the result rows; `values` are arguments of `exact`."""
    return exact(decoder, models, options, family="all", layer="long", **values)


def draw_probs(*shape, seed=0, scale=1):
    """Draw random distributions of this shape, which sum to 1 over the last axis; a larger `scale` makes them less
    flat."""
    probs = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return probs.mul(scale).softmax(-1)


# --- tests of targets of every kind


@pytest.mark.parametrize(
    ("kind", "decoder", "options", "size", "n_models"),
    [
        ("discrete", sjd, {"window": 16}, 20_000, 7),
        ("anysubset", assd, {"k": 5}, 8_000, 6),
        ("continuous", cspd, {"gamma": 4}, 6_400, 2),
    ],
)
def test_correct_decoders_pass_at_their_own_options(kind, decoder, options, size, n_models):
    rows = run_long(decoder, make_targets(kind, options, size)[:n_models], options, seeds=[0])
    assert {r["layer"] for r in rows} == {"long"}
    assert len({r["model"] for r in rows}) == n_models
    absent = {"discrete": {"PIT", "order"}, "anysubset": {"PIT"}, "continuous": {"order"}}[kind]
    assert {r["test"] for r in rows} == set(TESTS) - {"support"} - absent
    assert min(r["p_holm"] for r in rows if r["p_holm"] is not None) > 0.05
    assert all(0 < r["minimum_detectable_effect"] < 1 for r in rows if r["p_value"] is not None)
    assert {r["note"] for r in rows if r["test"] == "batches"} == {"the same tokens in batches of 1, 3, 32"}


def allow_all_words(model, *arguments):
    """Return uniform distributions [B, S, V + 1] in place of a model's; only the mask, which is last, is impossible."""
    probs = model.probs(*arguments)
    return torch.cat([torch.ones_like(probs[..., :-1]), probs[..., -1:]], -1) / (probs.shape[-1] - 1)


def allow_all_tokens(model, *arguments):
    return torch.zeros_like(model.logits(*arguments))


def draw_infinite(models, start, *, noise):
    """Decode vectors plainly, but divide the tokens by zero."""
    for step in mar(models, start, noise=noise):
        yield step._replace(tokens=step.tokens / 0)


LOOSE = faults.replace_logits(sjd, allow_all_tokens)
LOOSE_TEXT = any_faults.replace_probs(assd, allow_all_words)


@pytest.mark.parametrize(
    ("kind", "model", "decoder", "options", "message"),
    [
        ("discrete", "order 2 4x64", LOOSE, {"window": 8}, "token . of probability zero"),
        ("anysubset", "chain 8x64", LOOSE_TEXT, {"k": 5}, "token . of probability zero"),
        ("continuous", "regimes 64 x 1-D", draw_infinite, {}, ""),
    ],
)
def test_an_impossible_token_of_a_lossless_decoder_is_an_error(kind, model, decoder, options, message):
    with pytest.raises(ParityError, match=rf"model {model}, row \d+, position \d+: .*{message}"):
        run_long(decoder, make_targets(kind, options, 6_400, model), options)


def test_an_impossible_token_of_a_lossy_decoder_is_rejected():
    options = {"window": 8}
    models = make_targets("discrete", options, 10_000, "order 2")
    rows = run_long(LOOSE, models, options, claim="lossy", method="loose", seeds=[0])
    (support,) = (r for r in rows if r["test"] == "support")
    assert support["verdict"] == "rejected"
    assert "have probability zero" in support["note"]


# --- long targets of image tokens


OPEN = torch.full((4,), -1)


@pytest.mark.parametrize(
    "probs",
    [
        HiddenDistribution(draw_probs(1, 3)[0], draw_probs(3, 3), draw_probs(3, 2, seed=1)),
        make_chain(draw_probs(4, 2).view(2, 2, 2)),
        make_counter(draw_probs(3, 2)),
    ],
    ids=["hidden", "order 2", "counter"],
)
def test_a_hole_is_summed_over_and_a_token_is_replaced(probs):
    """By the model's joint, which it gives token by token. A token that is fed again replaces the first."""
    joint = compute_joint(HiddenMarkov(probs, 4, 16, 4, OPEN), 2, 4).view(2, 2, 2, 2).numpy()
    model = HiddenMarkov(probs, 4, 1, 4, OPEN)

    def feed(tokens, positions):
        """Feed tokens at positions to the model, and return the distribution [V] after the last."""
        return model.logits(torch.tensor([tokens]), torch.tensor([positions])).softmax(-1)[0, -1].numpy()

    assert joint.sum() == pytest.approx(1)
    feed([0], [-1])
    hole = joint[1, :, 1, :].sum(0)
    np.testing.assert_allclose(feed([1, 1], [0, 2]), hole / hole.sum(), atol=1e-14)
    np.testing.assert_allclose(feed([0, 1], [0, 1]), (joint[0, 1].sum(1) / joint[0, 1].sum()), atol=1e-14)


def test_trees_are_the_chain_of_their_paths():
    """Drafts verified in a tree, kept or not, leave plain decoding's tokens under the same noise."""
    for t in make_targets("discrete", {"window": 8}, 2_000):
        if not t.name.startswith("hash"):  # left out: the hashed model is tested below
            drawn = t.draw(mtj, 0, 0, {"window": 8, "branches": 8, "depth": 3})
            assert (drawn.tokens == t.draw(ar, 0, 0, {}).tokens).all(), t.name


LENGTH = 1024  # tokens of an image of LlamaGen, 512 pixels


def test_a_model_as_long_as_a_published_image():
    """Coupled decoders draw plain decoding's tokens on it; the tests accept these, and find that the last 100 of each
    row are drawn at random. Pairs of positions, whose number grows with the square, are not tested."""
    (far,) = (
        t for t in long_targets({"positions": 32, "lag": 0, "steps": 0}, 65_536, longest=LENGTH) if "far" in t.name
    )
    assert (far.length, far.probs) == (LENGTH, None)
    few = replace(far, n=3)
    plain = few.draw(ar, 0, 0, {}).tokens
    assert plain.shape == (3, LENGTH)
    for decoder in (sjd_coupled, mtj):
        assert (few.draw(decoder, 0, 0, {"window": 32}).tokens == plain).all()
    drawn = far.draw(ar, 0, 0, {})
    tokens = torch.from_numpy(drawn.tokens.copy())
    tokens[:, -100:] = torch.randint(4, (len(tokens), 100), generator=torch.Generator().manual_seed(0))
    late = far.to_drawn(torch.zeros(0), tokens, torch.ones_like(tokens), False)
    rejected = [
        {r["test"] for r in far.make_rows(d, "long", 0, 0) if r["p_value"] is not None and r["p_value"] < 1e-6}
        for d in (drawn, late)
    ]
    assert not rejected[0]
    assert rejected[1] >= {"transitions", "likelihood", "support"}


def feed_hashed(*tokens):
    """Feed tokens after the first one, 0, to a hashed model; return the model and the logits [V] of the next token."""
    table = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = HashedTable(table, 6, 1, 6, torch.full((6,), -1))
    return model, model.logits(torch.tensor([[0, *tokens]]), torch.arange(-1, len(tokens))[None])[0, -1]


def test_a_hashed_distribution_is_of_the_whole_prefix():
    """One token long ago changes it; a hole is passed over."""
    assert (feed_hashed(3, 1, 4, 1, 2)[1] != feed_hashed(2, 1, 4, 1, 2)[1]).all()
    model, _ = feed_hashed(3)
    assert (model.logits(torch.tensor([[1]]), torch.tensor([[3]]))[0, 0] == feed_hashed(3, 1)[1]).all()


def test_a_hashed_distribution_in_a_tree_is_of_the_path():
    model, _ = feed_hashed()
    nodes = model.tree(torch.tensor([[3, 1, 2, 4]]), torch.tensor([[0, 1, 1, 2]]), torch.tensor([[-1, 0, 0, 1]]))[0][0]
    for node, path in enumerate(([3], [3, 1], [3, 2], [3, 1, 4])):
        assert (nodes[node] == feed_hashed(*path)[1]).all()


def test_a_hashed_distribution_in_a_tree_is_of_all_final_nodes():
    """The last branch follows the first node, which is not its ancestor, but not that one's draft."""
    model, _ = feed_hashed(3)
    parents = torch.tensor([[FINAL, 0, FINAL, 2]])
    nodes = model.tree(torch.tensor([[1, 2, 4, 0]]), torch.tensor([[1, 2, 3, 4]]), parents)[0][0]
    for node, path in enumerate(([3, 1], [3, 1, 2], [3, 1, 4], [3, 1, 4, 0])):
        assert (nodes[node] == feed_hashed(*path)[1]).all()


def test_the_test_of_spread_keeps_its_level():
    """Of a hundred sequences. Squares are skewed: a plain z of them rejects 45 of these 2,000 at .01."""
    z = np.random.default_rng(0).normal(size=(2000, 100))
    p = np.array([make_spread_row("long", sums, np.ones(100))["p_value"] for sums in z])
    assert 90 <= (p <= 0.05).sum() <= 125
    assert 8 <= (p <= 0.01).sum() <= 32
    p_wider = np.array([make_spread_row("long", 1.4 * sums, np.ones(100))["p_value"] for sums in z[:200]])
    assert np.mean(p_wider <= 0.05) > 0.8


def test_products_at_each_distance_are_their_sums():
    x, y = np.random.default_rng(0).standard_normal((2, 3, 17))
    sums = [(x[:, :-d] * y[:, d:]).sum() for d in range(1, 17)]
    np.testing.assert_allclose(sum_products(x, y), sums, atol=1e-12)


# --- long targets of texts


V, N = 2, 5
STEP = draw_probs(3, 3, seed=1, scale=2)
RULES = {
    "chain": hidden.Strided(draw_probs(2, 2, scale=2), N),
    "copy": hidden.Strided(draw_probs(2, 2, scale=2), N, 2),
    "parity": hidden.Parity(draw_probs(2, scale=2), draw_probs(2, seed=3, scale=2), 3, N),
    "hidden": hidden.Hidden(torch.linalg.matrix_power(STEP, 2**20)[0], STEP, draw_probs(3, 2, seed=2, scale=2)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_word_given_any_subset_is_the_sum_over_the_others(name):
    """By one joint, the product of the words' distributions from left to right."""
    rule = RULES[name]
    texts = torch.cartesian_prod(*[torch.arange(V)] * N)
    joint = torch.ones(len(texts), dtype=torch.float64)
    for i in range(N):
        prefixes = texts.masked_fill(torch.arange(N) >= i, V)
        joint *= rule.probs_given(prefixes, torch.full((len(texts),), i)).gather(1, texts[:, i : i + 1])[:, 0]
    joint = joint.view([V] * N).numpy()
    for words in itertools.product(range(V + 1), repeat=N):
        unknown = [i for i in range(N) if words[i] == V]
        for axis, i in enumerate(unknown):
            index = tuple(slice(None) if v == V else v for v in words)
            expected = joint[index].sum(tuple(k for k in range(len(unknown)) if k != axis))
            probs = rule.probs_given(torch.tensor([words]), torch.tensor([i]))[0].numpy()
            np.testing.assert_allclose(probs, expected / expected.sum(), atol=1e-12)
    pair_probs = hidden.compute_pair_probs(rule, N).numpy()
    np.testing.assert_allclose(pair_probs[1, :, 4], joint.sum((0, 2, 3)) / joint.sum(), atol=1e-12)


def test_words_filled_in_at_one_step_are_found():
    rows = run_long(diffusion, make_targets("anysubset", {}, 16_384, "copy"), {"steps": 8}, claim="lossy", seeds=[0])
    assert any(r["verdict"] == "rejected" for r in rows)


# --- long targets of vectors


MOVE = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
REST = torch.tensor([0.4, 0.6], dtype=torch.float64)
MEANS, SCALES = (torch.tensor(v, dtype=torch.float64) for v in ([[-1.0, 0.5], [1.0, 0.0]], [[0.5, 1.0], [0.8, 0.6]]))
REGIMES = Regimes(REST, MOVE, MEANS, SCALES)


def compute_density(x, rank, n_known):
    """Compute the density of x[rank] given x[:n_known] under a chain of two regimes, by the sum over all regimes."""

    def compute_joint_density(ranks):
        """Compute the joint density of the numbers at these ranks, summed over the regimes."""
        total = 0.0
        for z in itertools.product(range(2), repeat=rank + 1):
            p = REST[z[0]] * np.prod([MOVE[a, b] for a, b in itertools.pairwise(z)])
            total += float(p) * np.prod([stats.norm.pdf(x[i], MEANS[z[i]], SCALES[z[i]]).prod() for i in ranks])
        return total

    return compute_joint_density([*range(n_known), rank]) / compute_joint_density(range(n_known))


def test_a_token_given_the_first_ones_is_of_the_joint_density():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 6, 2)))
    ranks = torch.tensor([[1, 3, 5], [2, 5, 4]])
    n_known = torch.tensor([[1, 2, 2], [2, 5, 1]])
    probs = LongMixture(REGIMES, 6).conditions(x, torch.arange(6).expand(2, -1), ranks, n_known)
    density = probs.log_density(x.gather(1, ranks[..., None].expand(-1, -1, 2)).flatten(0, 1)).exp().view(2, 3)
    for b, j in itertools.product(range(2), range(3)):
        expected = compute_density(x[b].numpy(), int(ranks[b, j]), int(n_known[b, j]))
        assert density[b, j] == pytest.approx(expected, rel=1e-9)


def test_pits_are_uniform_and_log_p_has_its_mean_and_variance():
    zero = torch.zeros(1, 1, dtype=torch.int64)
    distribution = REGIMES.compute_distributions(torch.zeros(1, 1, 2, dtype=torch.float64), zero, zero)
    rng, n = np.random.default_rng(0), 40_000
    k = rng.choice(2, n, p=distribution.log_weights[0].exp().numpy())
    y = torch.from_numpy(rng.normal(MEANS[k], SCALES[k]))
    distribution = distribution.rows(torch.zeros(n, dtype=torch.int64))
    pit, score, variance = score_numbers(distribution, y).numpy()
    assert stats.kstest(pit.ravel(), "uniform").pvalue > 0.001
    for d in range(2):
        error = np.sqrt(variance[:, d].mean() / n)
        assert abs(score[:, d].mean()) < 4 * error
        assert np.mean(score[:, d] ** 2) == pytest.approx(variance[:, d].mean(), rel=0.06)
    shifted = score_numbers(distribution, y + 0.05).numpy()
    assert stats.kstest(shifted[0, :, 0], "uniform").pvalue < 0.001  # numbers that are moved by .05 fail the test


def test_unverified_drafts_are_found_on_every_model():
    for t in make_targets("continuous", {}, 6_400):
        assert any(r["verdict"] == "rejected" for r in run_long(keep_drafts, [t], {}, seeds=[0])), t.name


@pytest.mark.parametrize(
    ("decoder", "options", "verdict"),
    [(ar, {}, "not rejected"), (spec, {"gamma": 4}, "not rejected"), (faults.LONG["ar: coarse"][0], {}, "rejected")],
)
def test_float32_draws_no_token_of_no_probability_over_a_real_vocabulary(decoder, options, verdict):
    """Must fail: exponentials of 24 bits."""
    target = make_real_vocabulary({"positions": 4, "lag": 0, "steps": 0})
    rows = target.make_rows(target.draw(decoder, 0, 1, options), "long", 1, 0)
    assert {r["test"]: r["verdict"] for r in rows} == {"tail": verdict, "ties": "not rejected"}
