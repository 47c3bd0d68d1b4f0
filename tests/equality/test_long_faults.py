"""Faults that show late, far, or in small batches alone, of every kind: found at half of the default size."""

from importlib import import_module

import pytest

from parity.base.noise import Noise
from parity.decoders.discrete.ar import ar
from parity.equality.faults import long as discrete
from parity.equality.faults import longanysubset, longcontinuous, planted
from parity.experiment.options import methods, on_enumerable, options

QUICK = [
    (discrete, "spec: small batch", "batches"),
    (longanysubset, "assd: alone", "batches"),
    (longanysubset, "sequential: twins", "rows"),
    (longanysubset, "sequential: backwards", "order"),
    (longcontinuous, "mar: small batch", "batches"),
    (longcontinuous, "mar: late reuse", "noise"),
    (discrete, "ar: twins of 9 to 64", "batches"),
    (discrete, "sjd: accept reuse", "noise"),
    (discrete, "sjd: late residual", "likelihood"),
    (longanysubset, "assd: accept reuse", "noise"),
    (longanysubset, "assd: beyond 128", "likelihood"),
    (longanysubset, "sequential: twins of 9 to 64", "batches"),
    (longcontinuous, "cspd: beyond 128", "likelihood"),
    (longcontinuous, "mar: twins of 9 to 64", "batches"),
]


def found(module, method, seeds):
    trials = (t for t in module.trials(32_768, seeds) if t.method == method)
    return planted(trials, seeds)


@pytest.mark.parametrize(("module", "method", "test"), QUICK, ids=[q[1] for q in QUICK])
def test_a_fault_is_found_by_the_test_that_is_for_it(module, method, test):
    rows = found(module, method, [0])
    assert {r["as_required"] for r in rows} == {True}
    assert [r["verdict"] for r in rows if r["test"] == test] == ["rejected"]


@pytest.mark.parametrize("kind", ["discrete", "anysubset", "continuous"])
def test_no_shipped_decoder_reads_a_number_at_two_places(kind):
    long = import_module(f"parity.equality.long.{kind}")
    for method in methods(kind):
        module, own = import_module(f"parity.decoders.{kind}.{method}"), options(kind, method, {})
        if not on_enumerable(kind, method, own):
            continue
        (target,) = (t for t in long.targets(own, 6400, which=getattr(module, "TARGETS", "")) if t.alone)
        rows = target.rows_of(target.draw(getattr(module, method), 0, 5, own), "long", 5, 0)
        assert [(r["p_value"], r["n"] > 0) for r in rows if r["test"] == "noise"] == [(1.0, True)], method


def test_a_decoder_that_reads_no_number_is_not_tested_for_reuse():
    def own_numbers(model, start, *, noise, **options):
        """ar, by numbers that it makes by itself."""
        return ar(model, start, noise=Noise(noise.keys + 1, noise.dtype), **options)

    (target,) = (t for t in import_module("parity.equality.long.discrete").targets({}, 6400) if t.alone)
    (row,) = (r for r in target.rows_of(target.draw(own_numbers, 0, 0, {}), "long", 0, 0) if r["test"] == "noise")
    assert row["p_value"] is None and row["verdict"] == "not run" and row["note"].startswith("not run: needs numbers")
