"""The numbers that layers share: statistics of sequences and of samples, sizes, certificates, evidence, verdicts."""

import numpy as np
import pytest
from parity_certify import joint_tests, result_rows, teacher_forced, verdict
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import GofChisquarePower
from statsmodels.stats.weightstats import ttost_paired

from parity.base.errors import ParityError
from parity.equality import calibration
from parity.equality.layers.discrete import paired
from parity.equality.targets.continuous import continuous_rows, energy_p
from parity.equality.targets.discrete import targets
from parity.models.continuous.tabular import exact_sampler, random_mixture


@pytest.fixture(scope="module")
def law():
    return next(t for t in targets() if t.name == "random-0 3x5").law


# --- what all layers compute alike


def test_tost_and_power_are_those_of_statsmodels():
    """Both are a few lines of scipy in the package, for statsmodels brings pandas to every job."""
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    assert np.isclose(paired.tost_p(x, y, 0.3), ttost_paired(x, y, -0.3, 0.3)[0])
    w = teacher_forced.compute_detectable_w() / 100
    power = GofChisquarePower().power(w, nobs=10_000, alpha=result_rows.ALPHA, n_bins=teacher_forced.BINS)
    assert np.isclose(power, result_rows.POWER, atol=1e-6)


def test_holm_is_that_of_statsmodels():
    p = np.random.default_rng(0).random(40) ** 3
    np.testing.assert_allclose(result_rows.holm(p), multipletests(p, method="holm")[1])


def test_the_oracles_limit_is_the_tabulated_one():
    for n, tv in ((618, 0.05), (3_863, 0.02), (15_450, 0.01), (61_800, 0.005)):
        assert result_rows.compute_detectable_tv(n) == pytest.approx(tv, rel=1e-3)


def test_no_p_value_is_zero():
    assert result_rows.compute_monte_carlo_p(np.inf, np.zeros(99)) == 0.01
    assert result_rows.make_row("exact", "x", 1, p_value=0.0)["p_value"] > 0


def test_a_row_has_every_column_and_no_undefined_number():
    made = result_rows.make_row("exact", "x", 3, p_value=0.2, statistic=float("nan"), effect=np.float32(1))
    wanted = (
        "layer model method key test n statistic p_value p_holm effect minimum_detectable_effect verdict seed repeat"
    )
    assert {*wanted.split(), "note", "decides"} <= set(made) and made["statistic"] is None and made["effect"] == 1
    assert result_rows.make_not_run_row("exact", "x", 3, "n >= 10")["note"] == "not run: needs n >= 10"


# --- sequences


def test_pooling_leaves_no_small_cell_and_drops_impossible_ones():
    expected = np.array([0.0, 1.0, 2.0, 3.0, 50.0, 4.0])
    group = joint_tests.pool_cells(expected)
    assert group[0] == -1
    assert (np.bincount(group[1:], expected[1:]) >= 5).all() and group.max() == 1


def test_conditional_tables_have_the_exact_conditionals(law):
    t = joint_tests.make_tables(law, 3, 5, 10**6)
    cells = joint_tests.digits(3, 5)
    assert t.pairs == 10 and len(t.starts) == 10 + 1 + 4 * 3
    inside = cells[:, 0] == 0
    wanted = [law[inside & (cells[:, 1] == b)].sum() / law[inside].sum() for b in range(3)]
    np.testing.assert_allclose(t.share[t.starts[11] : t.starts[12]], sorted(wanted))  # groups stand in order of mass


def test_the_certificate_covers_and_is_not_vacuous(law):
    """The bound holds for a law at a known distance in 95 % of samples or more, and is above the empirical distance."""
    other = 0.9 * law + 0.1 * np.roll(law, 1)
    tv = 0.5 * np.abs(other - law).sum()
    drawn = np.random.default_rng(0).multinomial(10_000, other / other.sum(), size=400)
    bounds = np.array([joint_tests.bound_tv(c, law) for c in drawn])
    intervals = np.array([joint_tests.compute_tv_interval(c, law) for c in drawn])
    assert (bounds >= tv).mean() >= 0.95 and bounds.max() < tv + 0.06
    assert ((intervals[:, 0] <= tv) & (tv <= intervals[:, 1])).mean() >= 0.95


@pytest.mark.parametrize(("share", "n"), [(0.03, 20_000), (0.4, 2_000)])
def test_the_estimate_of_the_tv_has_no_bias_where_the_plug_in_has(law, share, n):
    """The truth is enumerated: over 100 samples the mean estimate is within an event's standard error of it, and nearer
    than the mean plug-in."""
    other = (1 - share) * law + share * np.roll(law, 1)
    truth = 0.5 * np.abs(other - law).sum()
    drawn = np.random.default_rng(0).multinomial(n, other / other.sum(), size=100)
    estimate = np.mean([joint_tests.estimate_tv(c, law) for c in drawn])
    plug_in = joint_tests.compute_tv(drawn, law).mean()
    assert abs(estimate - truth) < min(0.5 / n**0.5, plug_in - truth), (truth, estimate, plug_in)


def test_a_fault_that_marginals_cannot_see_is_rejected(law):
    """Position 4 made independent of the others: its marginal is untouched."""
    cube = law.reshape([3] * 5)
    other = (cube.sum(4, keepdims=True) * cube.sum((0, 1, 2, 3))).ravel()
    drawn = np.random.default_rng(0).multinomial(5_000, other / other.sum())
    found = joint_tests.make_joint_rows("exact", drawn, law, 3, 5, rng=np.random.default_rng(0), draws=999)
    assert next(r for r in found if r["test"] == "all four")["p_value"] <= 0.01
    assert stats.chisquare(drawn.reshape([3] * 5).sum((0, 1, 2, 3)), 5_000 * cube.sum((0, 1, 2, 3))).pvalue > 0.05


def test_too_few_samples_are_said_so_and_give_no_number(law):
    found = joint_tests.make_code_rows("exact", "m", np.zeros(100, int), law, 3, 5, seed=0, draws=99)
    four = next(r for r in found if r["test"] == "all four")
    assert four["p_value"] is None and four["statistic"] is None and four["note"] == "not run: needs n >= 243"


def test_a_certain_law_has_nothing_to_test_but_what_it_excludes():
    law = np.array([0.0, 1.0, 0.0, 0.0])
    for wrong in (0, 3):
        codes = np.array([1] * 50 + [2] * wrong)
        four = joint_tests.make_code_rows("exact", "m", codes, law, 2, 2, seed=0, draws=99)[4]
        assert (four["verdict"] == "rejected") == bool(wrong)
        assert four["note"] == (
            "3 of 53 sequences have probability zero" if wrong else "not run: needs more than one possible sequence"
        )


# --- samples of continuous tokens


def test_continuous_rows_accept_the_law_and_reject_a_wider_one():
    model, rng = random_mixture(np.random.default_rng(0)), np.random.default_rng(1)
    samples = exact_sampler(model, 5000, rng)
    for scale, rejected in ((1.0, False), (1.1, True)):
        found = continuous_rows(scale * samples, model, rng=rng, energy_n=100, draws=499)
        assert any(r["verdict"] == "rejected" for r in found if r["decides"]) == rejected


def test_a_sample_that_is_not_finite_is_an_error_and_a_small_one_is_not_run():
    model = random_mixture(np.random.default_rng(0))
    samples = np.zeros((2000, 3, 1))
    samples[5, 1] = np.inf
    with pytest.raises(ParityError, match="position 1, row 5: sample is not finite"):
        continuous_rows(samples, model, rng=np.random.default_rng(0))
    few = continuous_rows(samples[:5], model, rng=np.random.default_rng(0))
    assert {r["note"] for r in few} == {"not run: needs n >= 1000"}


def test_energy_finds_a_shift_and_none_where_there_is_none():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 200, 3))
    assert energy_p(x, y, rng)[1] > 0.05 >= energy_p(x + 0.4, y, rng)[1]


# --- evidence over shards


def test_the_e_process_keeps_its_promise_under_peeking_and_chi_square_does_not():
    law = next(t for t in targets() if t.name == "random-0 3x4").law
    e, peeked, once = (r["effect"] for r in joint_tests.measure_false_alarms(law, replicates=500))
    assert e <= 0.05 < 0.15 < peeked and 0.03 <= once <= 0.07


def test_the_e_process_finds_a_fault_and_shards_come_in_any_order(law):
    other = 0.9 * law + 0.1 * np.roll(law, 1)
    shards = np.random.default_rng(0).multinomial(1_000, other / other.sum(), size=20)
    assert joint_tests.compute_log_e(shards.cumsum(0), law).max() >= np.log(1 / result_rows.ALPHA)
    backwards = shards[::-1].cumsum(0)
    assert joint_tests.compute_log_e(backwards, law)[-1] == pytest.approx(joint_tests.compute_log_e(shards.sum(0), law))


# --- the verdict


def fake(method, p, repeat=0, layer="teacher-forced", **values):
    return result_rows.make_row(
        layer, "log p", 100, p_value=p, method=method, repeat=repeat, effect=0.1, p_holm=p, **values
    )


def test_a_rejection_that_does_not_repeat_is_inconclusive():
    twice = [fake("a", 1e-5), fake("a", 0.5, 1), fake("b", 1e-5), fake("b", 1e-3, 1), fake("c", 0.4)]
    out = verdict.judge_decoders(twice, {}, 0.01)
    assert [v["verdict"] for v in out] == ["inconclusive", "lossy: TV not measured", "consistent"]
    once = verdict.judge_decoders([fake("d", 1e-5)], {}, 0.01)[0]
    assert once["verdict"] == "inconclusive" and "once" in once["note"]


def test_a_differing_token_needs_no_repetition():
    v = verdict.judge_decoders([fake("a", 1e-5, layer="pathwise")], {"a": "lossless"}, 0.01)[0]
    assert v["verdict"] == "lossy: TV not measured" and v["mismatch"] and v["rejected_by"] == ["pathwise"]


def test_holm_runs_over_decoders():
    alone = verdict.judge_decoders([fake("a", 0.02)], {}, 0.01)[0]
    among = verdict.judge_decoders([fake("a", 0.02), *(fake(f"m{k}", 0.5) for k in range(9))], {}, 0.01)[0]
    assert alone["rejected_by"] and not among["rejected_by"]
    assert among["p_decoders"]["teacher-forced"] == pytest.approx(0.2)


def test_rows_without_holm_are_a_family_of_their_own():
    made = [result_rows.make_row("paired", f"t{k}", 100, p_value=p, method="a") for k, p in enumerate((0.02, 0.5, 0.6))]
    assert verdict.judge_decoders(made, {}, 0.01)[0]["verdict"] == "consistent"
    assert made[0]["p_holm"] == pytest.approx(0.06) and made[0]["verdict"] == "not rejected"


def test_tests_of_the_tests_are_no_verdict_and_nothing_tested_is_inconclusive():
    assert verdict.judge_decoders([fake("a", 1e-9, layer="mutants")], {}, 0.01) == []
    not_run = result_rows.make_not_run_row("paired", "t", 3, "n >= 10 prompts", method="a")
    assert verdict.judge_decoders([not_run], {}, 0.01)[0]["verdict"] == "inconclusive"


# --- calibration


def test_calibration_says_when_it_cannot_tell():
    """Four replicates: rows and p-values of every test, with the interval that four allow."""
    found, p_values = calibration.calibration(replicates=4, draws=99)
    assert {r["test"] for r in found} == set(p_values) and all(r["low"] <= r["effect"] <= r["high"] for r in found)
    exact = [r for r in found if not r["test"].startswith("exact")]
    assert {r["n"] for r in exact} == {4} and "size unclear" in {r["verdict"] for r in exact}


@pytest.mark.slow
def test_sizes_of_all_tests_are_nominal(monkeypatch):
    """300 replicates; of the paired tests, which cost most, 100, which tell a size of .15 from the nominal .05."""
    every = calibration.paired_p
    monkeypatch.setattr(calibration, "paired_p", lambda replicates, rng: every(100, rng))
    found, p_values = calibration.calibration(replicates=300)
    sizes = {r["test"]: r["verdict"] for r in found}
    few = {test for test in sizes if test.startswith("paired: ")}
    assert {sizes[test] for test in set(sizes) - few} == {"size ok"}, sizes
    assert len(few) == 5 and "size off" not in {sizes[test] for test in few}, sizes
    assert calibration.size_row("paired: t", [0.01] * 30 + [0.5] * 170, 0)["verdict"] == "size off"
    assert set(p_values) == set(sizes)


def test_the_layers_of_a_correct_decoder_are_one_family():
    rng, layers = np.random.default_rng(0), ("exact", "long", "teacher-forced", "paired")
    samples = [
        [fake("a", p, layer=layer) for layer, p in zip(layers, rng.uniform(size=4), strict=True)] for _ in range(1000)
    ]
    rejected = sum(bool(verdict.judge_decoders(rows, {}, 0.01)[0]["rejected_by"]) for rows in samples)
    assert rejected < 72  # .05 of 1,000 and three deviations; each layer alone at .05 gives 185
