"""Layers 1, 2 and 6 and the verdict: sizes, power, certificates, errors. Every must-fail stands beside its must-pass."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import GofChisquarePower
from statsmodels.stats.weightstats import ttost_paired

from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.jacobi import jacobi
from parity.decoders.discrete.sjd import sjd
from parity.decoders.steps import Step
from parity.equality import counts as discrete
from parity.equality import exact, paired, pathwise, rows, sequential, teacher_forced, verdict
from parity.equality import faults as mutants
from parity.models.discrete.tabular import TabularModel, joint, random_table

torch.set_num_threads(1)
TARGETS = exact.targets()


def named(name):
    return next(t for t in TARGETS if t.name == name)


@pytest.fixture(scope="module")
def law():
    return exact.exact_law(named("random-0 3x5"))


# --- the numbers all layers share


def test_tost_and_power_are_those_of_statsmodels():
    """Both are a few lines of scipy in the package, for statsmodels brings pandas to every job."""
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    assert np.isclose(paired.tost_p(x, y, 0.3), ttost_paired(x, y, -0.3, 0.3)[0])
    power = GofChisquarePower().power(
        teacher_forced.detectable_w() / 100, nobs=10_000, alpha=rows.ALPHA, n_bins=teacher_forced.BINS
    )
    assert np.isclose(power, rows.POWER, atol=1e-6)


def test_holm_is_that_of_statsmodels():
    p = np.random.default_rng(0).random(40) ** 3
    np.testing.assert_allclose(rows.holm(p), multipletests(p, method="holm")[1])


def test_oracle_limit_is_the_tabulated_one():
    for n, tv in ((618, 0.05), (3_863, 0.02), (15_450, 0.01), (61_800, 0.005)):
        assert rows.detectable_tv(n) == pytest.approx(tv, rel=1e-3)


def test_no_p_value_is_zero():
    assert rows.monte_carlo_p(np.inf, np.zeros(99)) == 0.01
    assert rows.row("exact", "x", 1, p_value=0.0)["p_value"] > 0


# --- targets


def test_targets_are_at_least_twenty_laws_of_the_stated_kinds():
    assert len(TARGETS) >= 20 and {(t.vocab, t.length) for t in TARGETS} == set(exact.SHAPES)
    for t in TARGETS:
        assert exact.exact_law(t).sum() == pytest.approx(1, abs=1e-12)
    assert len(exact.targets("small")) == len(exact.SMALL)


def test_exact_law_is_the_models_joint():
    t = named("random-1 3x4")
    np.testing.assert_allclose(exact.exact_law(t), joint(TabularModel(t.table, 4, 81), 3, 4).numpy(), atol=1e-15)


def test_forced_positions_hold_the_forced_token():
    t = named("forced 3x4")
    cells = discrete.digits(3, 4)[exact.exact_law(t) > 0]
    assert (cells[:, 1] == 2).all() and (cells[:, 3] == 2).all() and len(cells) == 9


# --- statistics


def test_pooling_leaves_no_small_cell_and_drops_impossible_ones():
    expected = np.array([0.0, 1.0, 2.0, 3.0, 50.0, 4.0])
    group = discrete.pool(expected)
    assert group[0] == -1
    assert (np.bincount(group[1:], expected[1:]) >= 5).all() and group.max() == 1


def test_conditional_tables_have_the_exact_conditionals(law):
    t = discrete.tables(law, 3, 5, 10**6)
    cells = discrete.digits(3, 5)
    assert t.pairs == 10 and len(t.begin) == 10 + 1 + 4 * 3
    inside = cells[:, 0] == 0
    wanted = [law[inside & (cells[:, 1] == b)].sum() / law[inside].sum() for b in range(3)]
    np.testing.assert_allclose(t.share[t.begin[11] : t.begin[12]], sorted(wanted))  # groups stand in order of mass


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_sizes_are_nominal(law, n):
    """2,000 replicates, 4,999 null draws: the rate of p <= .05 has a standard error of .006."""
    rng = np.random.default_rng(1)
    t = discrete.tables(law, 3, 5, n)
    null = discrete.simulate_null(t, 4999, rng)
    observed = discrete.statistics(rng.multinomial(n, law / law.sum(), size=2000), t)
    size = (discrete.p_values(observed, null) <= 0.05).mean(0)
    assert ((size >= 0.03) & (size <= 0.07)).all(), size


def test_certificate_covers_and_is_not_vacuous(law):
    """The bound holds for a law at a known distance in at least 95 % of samples, and is above the empirical distance."""
    other = 0.9 * law + 0.1 * np.roll(law, 1)
    tv = 0.5 * np.abs(other - law).sum()
    counts = np.random.default_rng(0).multinomial(10_000, other / other.sum(), size=400)
    bounds = np.array([discrete.tv_bound(c, law) for c in counts])
    intervals = np.array([discrete.tv_interval(c, law) for c in counts])
    assert (bounds >= tv).mean() >= 0.95 and bounds.max() < tv + 0.06
    assert ((intervals[:, 0] <= tv) & (tv <= intervals[:, 1])).mean() >= 0.95


def test_bug_that_marginals_cannot_see_is_rejected(law):
    """Position 4 made independent of the others: its marginal is untouched."""
    cube = law.reshape([3] * 5)
    other = (cube.sum(4, keepdims=True) * cube.sum((0, 1, 2, 3))).ravel()
    counts = np.random.default_rng(0).multinomial(5_000, other / other.sum())
    found = discrete.joint_rows("exact", counts, law, 3, 5, rng=np.random.default_rng(0), draws=999)
    assert next(r for r in found if r["test"] == "all four")["p_value"] <= 0.01
    assert stats.chisquare(counts.reshape([3] * 5).sum((0, 1, 2, 3)), 5_000 * cube.sum((0, 1, 2, 3))).pvalue > 0.05


def test_too_few_samples_are_said_so_and_give_no_number(law):
    found = discrete.joint_rows(
        "exact", np.bincount([0] * 100, minlength=243), law, 3, 5, rng=np.random.default_rng(0), draws=99
    )
    four = next(r for r in found if r["test"] == "all four")
    assert four["p_value"] is None and four["statistic"] is None and four["note"] == "not run: needs n >= 243"


# --- decoders


@pytest.mark.parametrize(
    ("decoder", "options"),
    [(ar, {}), (sjd, {"window": 4, "init": "sample_above"}), (jacobi, {"window": 3, "coupling": "shared"})],
)
def test_lossless_decoders_pass(decoder, options):
    found = exact.exact(decoder, options, method="it", n=5_000, models="small", draws=1999)
    v = verdict.verdicts(found, {"it": "lossless"}, margin=0.1)[0]
    assert v["verdict"] == "certified lossless" and not v["mismatch"], v


def test_sjd_passes_on_every_kind_of_target():
    found = exact.exact(sjd, {"window": 3}, method="it", n=5_000, draws=1999)
    v = verdict.verdicts(found, {"it": "lossless"}, margin=0.1)[0]
    assert v["verdict"] == "certified lossless" and not v["mismatch"], v


def test_rows_have_every_column_and_repeat_what_was_rejected():
    found = exact.exact(partial(mutants.jacobi, fault="residual p"), method="bad", n=5_000, models="small", draws=999)
    wanted = [
        "layer",
        "model",
        "method",
        "key",
        "test",
        "n",
        "statistic",
        "p_value",
        "p_holm",
        "effect",
        "minimum_detectable_effect",
        "verdict",
        "seed",
        "repeat",
        "note",
    ]
    assert all(set(wanted) <= set(r) for r in found) and {r["repeat"] for r in found} == {0, 1}
    v = verdict.verdicts(found, {"bad": "lossless"}, margin=0.1)[0]
    assert v["verdict"].startswith("lossy: TV = 0.") and v["mismatch"] and v["tv_low"] > 0.02


def test_result_depends_on_the_seed_and_not_on_threads_or_chunks(monkeypatch):
    t = named("random-0 3x4")
    one = exact.draw(sjd, t, 3_000, 0, {"window": 3})
    monkeypatch.setattr(exact, "CHUNK", 700)
    assert (one == exact.draw(sjd, t, 3_000, 0, {"window": 3}, threads=2)).all()
    assert (one != exact.draw(sjd, t, 3_000, 1, {"window": 3})).any()


@pytest.mark.parametrize("name", list(mutants.variants()))
def test_mutants_are_rejected_and_their_originals_pass(name):
    """One seed; the +0.01 fault is required at 1e5 only, where the layer looks for it too."""
    found = mutants.mutants(n=10_000, seeds=[1], n_tv=20_000, draws=999, names=[name])
    required = {r["n"]: r["as_required"] for r in found if r["test"] == "all four"}
    assert all(v is not False for v in required.values()) and True in required.values(), required


def test_at_least_ten_faults_are_planted():
    assert len({fault for _, fault in mutants.variants().values()} - {"none"}) >= 10


# --- bad input


def test_impossible_token_is_an_error_that_names_its_place():
    def stubborn(model, start, *, noise):
        yield Step(
            torch.zeros(len(start), model.length, dtype=torch.int64),
            torch.full_like(start, model.length),
            torch.zeros_like(start),
        )

    with pytest.raises(
        ValueError, match=r"model forced 3x4, position 1, row 0: token 0 of probability zero was sampled"
    ):
        exact.exact(stubborn, n=1_000, models=[named("forced 3x4")], draws=99)
    found = exact.exact(stubborn, n=1_000, models=[named("forced 3x4")], draws=99, claim="lossy")
    four = next(r for r in found if r["test"] == "all four")
    assert four["verdict"] == "rejected" and four["note"] == "1000 of 1000 sequences have probability zero"


def test_position_that_is_never_decided_is_an_error():
    def lazy(model, start, *, noise):
        yield Step(torch.zeros(len(start), 2, dtype=torch.int64), torch.full_like(start, 2), torch.zeros_like(start))

    with pytest.raises(ValueError, match=r"model random-0 3x4, position 2, row 0: never decided"):
        exact.exact(lazy, n=1_000, models=[named("random-0 3x4")], draws=99)


def test_law_that_is_none_is_an_error_that_names_its_place():
    table = random_table(3, 4, torch.Generator().manual_seed(0))
    table[2, 1] = float("nan")
    with pytest.raises(ValueError, match=r"model broken, position 1, row 27: p is not a law"):
        exact.exact_law(exact.Target("broken", table, 4, 4))


# --- pathwise


def test_coupled_decoder_returns_the_very_tokens_and_an_uncoupled_one_does_not():
    same = pathwise.pathwise(jacobi, {"window": 3, "coupling": "shared"}, n=2_000)
    assert all(r["verdict"] == "identical" for r in same if r["test"].endswith("float64"))
    other = pathwise.pathwise(jacobi, {"window": 3, "coupling": "fresh"}, n=2_000)
    assert all(r["verdict"] == "rejected" and r["effect"] > 0.1 for r in other if r["test"].endswith("float64"))


def test_rounding_differences_are_stated_and_reject_nothing():
    a = np.zeros((1000, 4), int)
    b = a.copy()
    b[7, 2] = 1
    row = pathwise.token_row(a, b, exact=False)
    assert row["effect"] == 0.001 and not row["decides"] and "first: row 7, position 2" in row["note"]


# --- sequential


def test_e_process_keeps_its_promise_under_peeking_and_chi_square_does_not():
    law = exact.exact_law(named("random-0 3x4"))
    e, peeked, once = (r["effect"] for r in sequential.false_alarms(law, replicates=500))
    assert e <= 0.05 < 0.15 < peeked and 0.03 <= once <= 0.07


def test_e_process_finds_a_fault_and_shards_come_in_any_order(law):
    other = 0.9 * law + 0.1 * np.roll(law, 1)
    shards = np.random.default_rng(0).multinomial(1_000, other / other.sum(), size=20)
    found = sequential.e_rows(shards, law)
    assert found[-1]["verdict"] == "rejected" and found[-1]["decides"] and not found[0]["decides"]
    assert sequential.e_rows(shards[::-1], law)[-1]["statistic"] == pytest.approx(found[-1]["statistic"])


# --- verdict


def fake(method, p, repeat=0, **values):
    return rows.row(
        "teacher-forced", "log p", 100, p_value=p, method=method, repeat=repeat, effect=0.1, p_holm=p, **values
    )


def test_rejection_that_does_not_repeat_is_inconclusive():
    out = verdict.verdicts(
        [fake("a", 1e-5), fake("a", 0.5, 1), fake("b", 1e-5), fake("b", 1e-3, 1), fake("c", 0.4)], {}, 0.01
    )
    assert [v["verdict"] for v in out] == ["inconclusive", "lossy: TV not measured", "consistent"]
    once = verdict.verdicts([fake("d", 1e-5)], {}, 0.01)[0]
    assert once["verdict"] == "inconclusive" and "once" in once["note"]


def test_holm_runs_over_decoders():
    alone = verdict.verdicts([fake("a", 0.02)], {}, 0.01)[0]
    among = verdict.verdicts([fake("a", 0.02), *(fake(f"m{k}", 0.5) for k in range(9))], {}, 0.01)[0]
    assert (
        alone["rejected_by"]
        and not among["rejected_by"]
        and among["p_decoders"]["teacher-forced"] == pytest.approx(0.2)
    )


def test_rows_without_holm_are_a_family_of_their_own():
    made = [rows.row("paired", f"t{k}", 100, p_value=p, method="a") for k, p in enumerate((0.02, 0.5, 0.6))]
    found = verdict.verdicts(made, {}, 0.01)[0]
    assert (
        found["verdict"] == "consistent"
        and made[0]["p_holm"] == pytest.approx(0.06)
        and made[0]["verdict"] == "not rejected"
    )


def test_nothing_tested_is_inconclusive():
    assert (
        verdict.verdicts([rows.not_run("paired", "t", 3, "n >= 10 prompts", method="a")], {}, 0.01)[0]["verdict"]
        == "inconclusive"
    )


@pytest.mark.slow
def test_certified_at_a_million():
    found = exact.exact(sjd, {"window": 3}, n=1_000_000, models=[named("random-0 3x5")], threads=2)
    certificate = next(r for r in found if r["test"] == "TV certificate")
    assert certificate["effect"] <= 0.0065 and certificate["cells"] == 243
