"""Long targets: correct decoders at their own options, impossible tokens, and faults of far away."""

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
from scipy import stats

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.equality.martingale_tests import TESTS, make_spread_row, sum_products
from parity.equality.targets.continuous import score_numbers
from parity.equality.targets.discrete import long_targets, make_real_vocabulary
from parity.models.anysubset import hidden
from parity.models.continuous.hidden import Regimes
from tests.equality.faults import anysubset as any_faults
from tests.equality.faults import discrete as faults
from tests.tables import keep_drafts


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


def test_trees_are_the_chain_of_their_paths():
    """Drafts verified in a tree, kept or not, leave plain decoding's tokens under the same noise."""
    for t in make_targets("discrete", {"window": 8}, 2_000):
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
