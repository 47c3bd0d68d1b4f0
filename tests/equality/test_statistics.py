"""The numbers that layers share: statistics of sequences and of samples, sizes, certificates, evidence, verdicts."""

import numpy as np
import pytest
from parity_certify import joint_tests, result_rows, teacher_forced, verdict
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import GofChisquarePower
from statsmodels.stats.weightstats import ttost_paired

from parity.base.errors import ParityError
from parity.equality.layers.discrete import paired
from parity.equality.targets.continuous import compute_energy_p, make_continuous_rows
from parity.equality.targets.discrete import targets
from parity.models.continuous.tabular import exact_sampler, random_mixture
from tests.equality import calibration


@pytest.fixture(scope="module")
def probs():
    """The distribution [3^5] of the enumerable target "random-0 3x5"."""
    return next(t for t in targets() if t.name == "random-0 3x5").probs


def test_tost_and_power_are_those_of_statsmodels():
    """Both are a few lines of scipy in the package, because statsmodels brings pandas to every job."""
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    assert np.isclose(paired.compute_tost_p(x, y, 0.3), ttost_paired(x, y, -0.3, 0.3)[0])
    w = teacher_forced.compute_detectable_w() / 100
    power = GofChisquarePower().power(w, nobs=10_000, alpha=result_rows.ALPHA, n_bins=teacher_forced.BINS)
    assert np.isclose(power, result_rows.POWER, atol=1e-6)


def test_holm_is_that_of_statsmodels():
    p = np.random.default_rng(0).random(40) ** 3
    np.testing.assert_allclose(result_rows.holm(p), multipletests(p, method="holm")[1])


def test_no_p_value_is_zero():
    assert result_rows.compute_monte_carlo_p(np.inf, np.zeros(99)) == 0.01
    assert result_rows.make_row("exact", "x", 1, p_value=0.0)["p_value"] > 0


def test_the_certificate_covers_and_is_not_vacuous(probs):
    """For a distribution at a known distance, in 95 % of samples or more."""
    other_probs = 0.9 * probs + 0.1 * np.roll(probs, 1)
    tv = 0.5 * np.abs(other_probs - probs).sum()
    drawn = np.random.default_rng(0).multinomial(10_000, other_probs / other_probs.sum(), size=400)
    bounds = np.array([joint_tests.bound_tv(c, probs) for c in drawn])
    intervals = np.array([joint_tests.compute_tv_interval(c, probs) for c in drawn])
    assert (bounds >= tv).mean() >= 0.95
    assert bounds.max() < tv + 0.06
    assert ((intervals[:, 0] <= tv) & (tv <= intervals[:, 1])).mean() >= 0.95


def test_too_few_samples_are_not_run(probs):
    rows = joint_tests.make_code_rows("exact", "m", np.zeros(100, int), probs, 3, 5, seed=0, draws=99)
    row = next(r for r in rows if r["test"] == "all four")
    assert (row["p_value"], row["statistic"], row["note"]) == (None, None, "not run: needs n >= 243")


@pytest.mark.parametrize(
    ("n_impossible", "verdict", "note"),
    [
        (0, "not run", "not run: needs more than one possible sequence"),
        (3, "rejected", "3 of 53 sequences have probability zero"),
    ],
)
def test_of_a_certain_distribution_only_the_support_is_tested(n_impossible, verdict, note):
    codes = np.array([1] * 50 + [2] * n_impossible)
    probs = np.array([0.0, 1.0, 0.0, 0.0])
    row = joint_tests.make_code_rows("exact", "m", codes, probs, 2, 2, seed=0, draws=99)[4]
    assert (row["verdict"], row["note"]) == (verdict, note)


def test_continuous_rows_accept_the_distribution_and_reject_a_wider_one():
    model = random_mixture(np.random.default_rng(0))
    rng = np.random.default_rng(1)
    samples = exact_sampler(model, 5000, rng)
    for scale, rejected in ((1.0, False), (1.1, True)):
        rows = make_continuous_rows(scale * samples, model, rng=rng, energy_n=100, draws=499)
        assert any(r["verdict"] == "rejected" for r in rows if r["decides"]) == rejected


def test_a_sample_that_is_not_finite_is_an_error():
    samples = np.zeros((2000, 3, 1))
    samples[5, 1] = np.inf
    with pytest.raises(ParityError, match="position 1, row 5: sample is not finite"):
        make_continuous_rows(samples, random_mixture(np.random.default_rng(0)), rng=np.random.default_rng(0))


def test_a_small_sample_of_vectors_is_not_run():
    model = random_mixture(np.random.default_rng(0))
    rows = make_continuous_rows(np.zeros((5, 3, 1)), model, rng=np.random.default_rng(0))
    assert {r["note"] for r in rows} == {"not run: needs n >= 1000"}


def test_energy_finds_a_shift():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 200, 3))
    assert compute_energy_p(x, y, rng)[1] > 0.05
    assert compute_energy_p(x + 0.4, y, rng)[1] <= 0.05


def make_row(method, p, repeat=0, layer="teacher-forced"):
    """Make the result row of a test with p-value p of a layer, before and after correction the same."""
    values = {"method": method, "repeat": repeat, "effect": 0.1, "p_value": p, "p_holm": p}
    return result_rows.make_row(layer, "log p", 100, **values)


def test_a_rejection_that_does_not_repeat_is_inconclusive():
    rows = [make_row("a", 1e-5), make_row("a", 0.5, 1), make_row("b", 1e-5), make_row("b", 1e-3, 1), make_row("c", 0.4)]
    verdicts = verdict.judge_decoders(rows, {}, 0.01)
    assert [v["verdict"] for v in verdicts] == ["inconclusive", "lossy: TV not measured", "consistent"]
    assert (
        verdict.judge_decoders([make_row("d", 1e-5)], {}, 0.01)[0]["verdict"] == "inconclusive"
    )  # nor one not repeated


def test_a_differing_token_needs_no_repetition():
    v = verdict.judge_decoders([make_row("a", 1e-5, layer="pathwise")], {"a": "lossless"}, 0.01)[0]
    assert (v["verdict"], v["rejected_by"]) == ("lossy: TV not measured", ["pathwise"])
    assert v["mismatch"]


def test_holm_runs_over_decoders():
    single = verdict.judge_decoders([make_row("a", 0.02)], {}, 0.01)[0]
    of_ten = verdict.judge_decoders([make_row("a", 0.02), *(make_row(f"m{k}", 0.5) for k in range(9))], {}, 0.01)[0]
    assert single["rejected_by"]
    assert not of_ten["rejected_by"]
    assert of_ten["p_decoders"]["teacher-forced"] == pytest.approx(0.2)


def test_a_decoder_that_was_not_tested_is_inconclusive():
    not_run = result_rows.make_not_run_row("paired", "t", 3, "n >= 10 prompts", method="a")
    assert verdict.judge_decoders([not_run], {}, 0.01)[0]["verdict"] == "inconclusive"


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "replicate", "arguments"),
    [
        (0, calibration.replicate_exact, (1500, 9999, 10_000)),
        (1, calibration.replicate_exact, (1500, 9999, 1_000_000)),
        (2, calibration.replicate_teacher_forced, (300, 0)),
        (3, calibration.replicate_paired, (100,)),
        (4, calibration.replicate_continuous, (300, 9999)),
    ],
)
def test_sizes_of_all_tests_are_nominal(number, replicate, arguments):
    """Of the paired tests, which cost most, 100 replicates tell a size of .15 from the nominal .05. Families corrected
    by Holm, and e-values, promise at most .05."""
    n, *rest = arguments
    for test, ps in replicate(n, np.random.default_rng(0).spawn(5)[number], *rest).items():
        hits = int((np.array(ps) <= result_rows.ALPHA).sum())
        low, high = stats.binomtest(hits, len(ps)).proportion_ci(method="wilson")
        least = 0.0 if "Holm" in test or "e-value" in test else 0.03
        assert least <= high and low <= 0.07, (test, low, high)
        assert n == 100 or least <= hits / len(ps) <= 0.07, test


def test_the_layers_of_a_correct_decoder_are_one_family():
    rng = np.random.default_rng(0)
    layers = ("exact", "long", "teacher-forced", "paired")
    n_rejected = 0
    for _ in range(1000):
        rows = [make_row("a", p, layer=layer) for layer, p in zip(layers, rng.uniform(size=4), strict=True)]
        n_rejected += bool(verdict.judge_decoders(rows, {}, 0.01)[0]["rejected_by"])
    assert n_rejected < 72  # .05 of 1,000 plus three deviations; without correction over layers there would be 185


def judge_beside_others(counts, probs, n_decoders=99):
    """Judge a decoder with these counts beside others, of which none is rejected."""
    rows = []
    for repeat in range(2):
        made = joint_tests.make_joint_rows(
            "exact", counts, probs, 4, 3, rng=np.random.default_rng(repeat), draws=999, method="it", repeat=repeat
        )
        rows += [row | {"model": "table"} for row in made]
    rows += [make_row(f"m{k}", 0.5, layer="exact") for k in range(n_decoders)]
    return verdict.judge_decoders(rows, {"it": "lossy"}, 0.05)[0]["value"]


def test_a_coarse_fault_is_found_beside_many_decoders():
    """The smallest p-value of 999 null draws would not reject among a hundred."""
    probs = np.random.default_rng(0).dirichlet(np.ones(64))
    rng = np.random.default_rng(1)
    assert judge_beside_others(rng.multinomial(5000, probs), probs).kind == "consistent"
    far = judge_beside_others(rng.multinomial(5000, 0.5 * probs + 0.5 * np.roll(probs, 1)), probs)
    assert far.kind == "lossy"
    assert far.interval[0] > 0.1


def test_the_e_value_below_the_smallest_p_value_keeps_the_level():
    probs = np.random.default_rng(2).dirichlet(np.ones(27))
    rng = np.random.default_rng(3)
    ps = [
        next(
            r["p_value"]
            for r in joint_tests.make_joint_rows("exact", rng.multinomial(500, probs), probs, 3, 3, rng=rng, draws=99)
            if r["test"] == "all four"
        )
        for _ in range(400)
    ]
    assert np.mean(np.array(ps) < 0.01) <= 0.02  # below the smallest of 99 draws; the chance of 9 or more is 2 %
    assert 0.02 <= np.mean(np.array(ps) <= 0.05) <= 0.09


def test_no_decoder_is_consistent_where_the_interval_excludes_zero():
    certificate = make_row("a", None, layer="exact") | {
        "test": "TV certificate",
        "model": "t",
        "tv": 0.2,
        "alpha": 0.05,
    }
    certificate |= {"tv_low": 0.1, "tv_high": 0.3, "effect": 0.3, "minimum_detectable_effect": 0.1, "decides": False}
    rows = [certificate, make_row("a", 0.4, layer="exact")]
    found = verdict.judge_decoders(rows, {}, 0.5)[0]["value"]
    assert found.kind == "inconclusive"
    assert "on t, 0.1000 to 0.3000, excludes 0, but no test rejects" in found.reason
    certificate["tv_low"] = 0.0
    assert verdict.judge_decoders(rows, {}, 0.5)[0]["value"].kind == "certified"
