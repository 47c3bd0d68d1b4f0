"""Nothing changes a row that it was given: what corrects or judges rows returns new ones, in the same order."""

import copy
import math

import numpy as np
import pytest

from parity_certify import evidence, result_rows, verdict
from parity_certify import joint_tests as J
from parity_certify.calls import Drawn
from parity_certify.certificate import make_certificate
from parity_certify.distributions import target_distribution
from parity_certify.texts import Judged, judge_texts

ALPHA = 0.05


def draw_rows(seed):
    """Draw rows of two decoders in three layers, some that decide, were not run, repeated or corrected already."""
    rng, rows = np.random.default_rng(seed), []
    for k in range(40):
        p = None if rng.random() < 0.2 else float(10 ** rng.uniform(-6, 0))
        values = {"method": "ab"[rng.integers(2)], "repeat": int(rng.integers(2)), "decides": bool(rng.integers(2))}
        values |= {"p_value": p, "p_holm": p if rng.random() < 0.5 else None, "minimum_detectable_effect": 0.1}
        rows.append(result_rows.make_row(("paired", "long", "pathwise")[rng.integers(3)], f"test {k}", 100, **values))
    return rows


def adjust_by_test(rows):
    return result_rows.adjust_families(rows, lambda r: r["layer"], ALPHA)


def judge_first(rows):
    """Judge decoder "a" by the rows that `draw_rows` made of it."""
    runs = {}
    for r in (r for r in rows if r["method"] == "a"):
        runs.setdefault(r["layer"], ([], []))[r["repeat"]].append(r)
    p = {layer: verdict.compute_layer_p(first, ALPHA) for layer, (first, _) in runs.items()}
    return verdict.judge_decoder({k: v for k, v in p.items() if v is not None}, runs, [], 0.05, ALPHA)


def judge_as_texts(rows):
    """Judge corrected rows as those of nine texts."""
    return judge_texts(rows, Judged([{"tokens": [0]}] * 9, math.inf, print), ALPHA)


def adjust_in_place(rows):
    """Correct rows as one family in the rows themselves, as must not be."""
    for row, adjusted in zip(rows, result_rows.adjust_family(rows, ALPHA), strict=True):
        row.update(adjusted)
    return rows


PURE = {
    "adjust_families": adjust_by_test,
    "adjust_family": lambda rows: result_rows.adjust_family(rows, ALPHA),
    "adjust_deciding": lambda rows: result_rows.adjust_deciding(rows, ALPHA),
    "adjust_missing": lambda rows: verdict.adjust_missing(rows, ALPHA),
    "compute_layer_p": lambda rows: verdict.compute_layer_p(rows, ALPHA),
    "judge_decoders": lambda rows: verdict.judge_decoders(rows, {"a": "lossless"}, 0.05, ALPHA),
    "judge_decoder": judge_first,
}


def keeps(function, rows):
    """Call a function with rows; return whether they are afterwards what they were."""
    before = copy.deepcopy(rows)
    function(rows)
    return rows == before


@pytest.mark.parametrize("name", PURE)
def test_rows_stay_as_they_are(name):
    assert all(keeps(PURE[name], draw_rows(seed)) for seed in range(20))


def test_a_function_that_changes_its_rows_is_found():
    assert not any(keeps(adjust_in_place, draw_rows(seed)) for seed in range(20))


@pytest.mark.parametrize("name", [name for name in PURE if name.startswith("adjust")])
def test_adjusted_rows_are_new_and_in_order(name):
    """Each row returned is another object with the same test; only p_holm and verdict may differ."""
    for seed in range(20):
        rows = draw_rows(seed)
        for row, new in zip(rows, PURE[name](rows), strict=True):
            assert new is not row
            assert {k for k in row if row[k] != new[k]} <= {"p_holm", "verdict"}


def test_only_families_that_lack_a_correction_are_corrected():
    """Families without p_holm get Holm's; one that was corrected keeps what it has, and a second call changes none."""
    for seed in range(20):
        rows = draw_rows(seed)
        once = verdict.adjust_missing(rows, ALPHA)
        assert verdict.adjust_missing(once, ALPHA) == once
        names = [(r["method"], r["key"], r["layer"], r["repeat"]) for r in rows]
        for name in set(names):
            members = [i for i, n in enumerate(names) if n == name and rows[i]["decides"]]
            members = [i for i in members if rows[i]["p_value"] is not None]
            known = [rows[i]["p_holm"] for i in members]
            wanted = result_rows.holm([rows[i]["p_value"] for i in members]) if None in known else known
            assert [once[i]["p_holm"] for i in members] == pytest.approx(list(wanted))


def test_judging_texts_leaves_their_rows():
    for seed in range(20):
        rows = [r | {"where": ""} for r in result_rows.adjust_family(draw_rows(seed), ALPHA)]
        assert keeps(judge_as_texts, rows)


V, L = 2, 3
UNIFORM = target_distribution(lambda prefixes: np.full((len(prefixes), V), 1 / V), vocab=V, length=L, prompts=[[0]])
OTHER = np.random.default_rng(0).dirichlet(np.ones(V**L))


def draw_sample(seed, p):
    """Draw 2,000 sequences with probabilities p [V^L]."""
    counts = np.random.default_rng(seed).multinomial(2000, p)
    return Drawn(counts, max_log_e=float(J.compute_log_e(counts, UNIFORM.cells)))


@pytest.mark.parametrize("p", [UNIFORM.cells, OTHER], ids=["right", "wrong"])
def test_samples_looks_and_rows_stay_as_they_are(p):
    """The rows of a sample are made from looks and counts that stay; a lossy certificate has its TV in rows of its own,
    the rows that it was made from being the same as before."""
    samples = [draw_sample(seed, p) for seed in range(2)]
    looks, before = {100: 0.5}, copy.deepcopy(samples)
    rows = []
    for seed, drawn in enumerate(samples):
        made = evidence.make_sample_rows(drawn, UNIFORM, seed, alpha=ALPHA, draws=99, looks=looks)
        assert evidence.add_look(looks, drawn, made).keys() == {100, 2000}
        rows += [r | {"method": "it", "repeat": seed} for r in made]
    assert looks == {100: 0.5}
    about = {"margin": 0.05, "alpha": ALPHA, "claim": "lossless", "name": "it"}
    assert keeps(lambda rows: make_certificate(rows, UNIFORM, samples, **about), rows)
    certificate = make_certificate(rows, UNIFORM, samples, **about)
    assert (certificate.rows != rows) == (certificate.verdict.kind == "lossy") == (p is OTHER)
    for one, other in zip(samples, before, strict=True):
        assert (one.counts == other.counts).all() and one.max_log_e == other.max_log_e


def test_a_stopped_sample_has_no_look():
    drawn = draw_sample(0, UNIFORM.cells)
    drawn.stopped = True
    rows = evidence.make_sample_rows(drawn, UNIFORM, 0, alpha=ALPHA, looks={100: 0.5})
    assert evidence.add_look({100: 0.5}, drawn, rows) == {100: 0.5}
    assert next(r for r in rows if r["test"] == "TV certificate")["verdict"] == "not run"
