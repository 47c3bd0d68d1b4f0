"""The cost model: what methods gain where a pass costs what it costs elsewhere."""

import math

import numpy as np
import pandas as pd
import pytest

from parity.report.cost import (
    FLAT,
    find_fastest,
    make_line_cost,
    measure_cost,
    predict_gain,
    read_gpu_cost,
    select_best_within,
)  # fmt: skip

PLAIN = {"label": "ar", "method": "ar", "role": "reference", "nfe": 256.0, "nodes_per_pass": 1.0, "draft_calls": 0.0}
ALONE = {"label": "sjd", "method": "sjd", "role": "method", "nfe": 64.0, "nodes_per_pass": 32.0, "draft_calls": 0.0}
DRAFTED = {**ALONE, "label": "spec", "method": "spec", "draft_calls": 192.0, "draft_share": 0.25, "draft_nodes": 1.0}


def make_rows(*rows):
    """Make a table of the row PLAIN and these rows."""
    return pd.DataFrame([PLAIN, *rows])


def test_calls_of_a_speculator_weigh_by_its_share():
    assert predict_gain(DRAFTED, PLAIN, FLAT) == pytest.approx(256 / (64 + 192 / 4))
    # Calls of unknown cost are not counted as free.
    assert math.isnan(predict_gain({**DRAFTED, "draft_share": None}, PLAIN, FLAT))


def test_gain_falls_with_the_cost_of_nodes():
    gains = [predict_gain(ALONE, PLAIN, make_line_cost(x, 32)) for x in (1, 2, 4)]
    assert gains == pytest.approx([4, 2, 1])
    assert predict_gain(PLAIN, PLAIN, make_line_cost(9)) == 1


def test_a_measured_curve_rises_and_finds_its_cost():
    rng, nodes = np.random.default_rng(0), np.linspace(4, 64, 40)
    noisy = (1 + 0.1 * (nodes - 1)) * np.exp(rng.normal(0, 0.02, 40))
    curve = measure_cost(
        make_rows(*({**ALONE, "nodes_per_pass": n, "pass_cost": c} for n, c in zip(nodes, noisy, strict=True)))
    )
    assert curve.interpolate(32) == pytest.approx(4.1, rel=0.05)
    assert curve.interpolate(1) == 1
    assert (np.diff([curve.interpolate(n) for n in range(1, 65)]) >= 0).all()
    assert measure_cost(make_rows(ALONE)) is None


def test_the_best_of_a_method_keeps_to_the_budget():
    wide = {**ALONE, "label": "sjd wide", "nfe": 50.0, "nodes_per_pass": 60.0}
    rows = make_rows(ALONE, wide, DRAFTED)
    assert select_best_within(rows, 32)["label"].tolist() == ["sjd", "spec"]
    assert select_best_within(rows, 64)["label"].tolist() == ["sjd wide", "spec"]
    assert select_best_within(rows, 16).empty


def test_lossless_and_lossy_options_are_ranked_separately():
    lossy = {**ALONE, "label": "sjd relaxed", "nfe": 20.0, "claim": "lossy"}
    assert len(select_best_within(make_rows({**ALONE, "claim": "lossless"}, lossy), 32)) == 2


def test_a_gpus_curve_is_read_from_measured_forwards():
    measured = [(True, 1, 1, 2.0), (True, 1, 32, 3.0), (False, 1, 32, 90.0), (True, 8, 32, 70.0)]
    names = ("compiled", "batch", "window", "ms")
    forwards = [{"network": "a", "context": 0, **dict(zip(names, row, strict=True))} for row in measured]
    benchmark = {"measured": True, "forwards": forwards, "how": {"device_name": "H100"}}
    curve = read_gpu_cost(benchmark)
    assert curve.interpolate(32) == pytest.approx(1.5)
    assert "H100" in curve.source
    assert read_gpu_cost({**benchmark, "measured": False}) is None


def make_method(label, nfe, nodes, **more):
    return {**ALONE, "label": label, "method": label, "claim": "lossless", "nfe": nfe, "nodes_per_pass": nodes, **more}


WIDE = make_method("wide", 32.0, 64.0)  # an image takes 32 c where a pass over 64 tokens costs c
NARROW = make_method("narrow", 64.0, 22.0)  # and here 64 + 64 (c - 1) / 3


def list_stretches(*rows):
    """List (low, high, name) of the stretches on which a method is the fastest."""
    return [(s.low, s.high, s.name) for s in find_fastest(make_rows(*rows))]


def test_the_fastest_changes_where_lines_cross():
    """32 c and 64 + 64 (c - 1) / 3 are equal at c = 4, 64 + 64 (c - 1) / 3 and 256 at c = 10."""
    expected = [(1, 4, "wide"), (4, 10, "narrow"), (10, 16, "plain decoding")]
    for rows in ((WIDE, NARROW), (NARROW, WIDE)):
        assert [(pytest.approx(a), pytest.approx(b), name) for a, b, name in expected] == list_stretches(*rows)
    gains = [s.gains for s in find_fastest(make_rows(WIDE, NARROW))]
    assert gains == [pytest.approx(ends) for ends in ([8, 2], [2, 1], [1, 1])]


def test_lossy_methods_are_never_the_fastest():
    relaxed = make_method("relaxed", 10.0, 2.0, claim="lossy")
    broken = make_method("broken", 10.0, 2.0, verdict_kind="lossy")
    assert list_stretches(WIDE, relaxed, broken) == list_stretches(WIDE)


def test_methods_within_the_error_are_ties():
    """Passes 50 and 54 differ by less than 1.96 times the error of both, 2.83; 50 and 70 by more."""
    best, near, far = (make_method(n, x, 31.0, nfe_se=2.0) for n, x in (("best", 50.0), ("near", 54.0), ("far", 70.0)))
    first = find_fastest(make_rows(best, near, far))[0]
    ranges = {one.name: (one.low, one.high) for one in first.near}
    assert ranges["near"] == (first.low, first.high)
    assert "far" not in ranges
    sharper = find_fastest(make_rows(best | {"nfe_se": 0.5}, near | {"nfe_se": 0.5}))[0]
    assert "near" not in {one.name for one in sharper.near}
