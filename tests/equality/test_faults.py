"""Planted faults: every one is found, those too that show late, far, or in small batches; no correct one is."""

from importlib import import_module

import pytest
from parity_certify.result_rows import make_row
from parity_decoders.discrete.ar import ar
from parity_decoders.noise import Noise

from parity.equality.faults import Trial, anysubset, continuous, discrete, try_out
from parity.experiment.options import measure_reach, methods, options, runs_on_enumerable

EVERY = {
    discrete: discrete.VARIANTS,
    anysubset: anysubset.VARIANTS,
    continuous: continuous.VARIANTS | continuous.WALKED,
}
NAMED = [(kind, name) for kind, variants in EVERY.items() for name in variants]


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=[f"{k.__name__.rsplit('.', 1)[1]} {n}" for k, n in NAMED])
def test_faults_are_found_and_correct_decoders_are_not(kind, name):
    """A fault on one seed; one that shows in more sequences is required where the layer looks for it with more, too."""
    n, seed = (10_000, 1) if kind is discrete else (20_000, 0)
    seeds = [0, 1] if EVERY[kind][name][1] == "none" else [seed]
    required = [try_out(t, seeds).as_required for t in kind.trials(n, seeds, draws=999) if t.method == name]
    assert False not in required and True in required, required


def test_a_control_may_be_rejected_by_chance_once_and_a_fault_must_be_found_each_time():
    def trial(fault, ps, enough=True):
        values = iter(ps)
        return Trial("it", fault, lambda seed: [make_row("mutants", "all four", 9, p_value=next(values))], enough)

    def required(trial):
        return try_out(trial, [5, 6]).as_required

    assert required(trial("none", (0.01, 0.4))) and required(trial("none", (0.01, 0.02))) is False
    assert required(trial("stale", (0.01, 0.02))) and required(trial("stale", (0.01, 0.4))) is False
    assert required(trial("stale", (0.01, 0.4), enough=False)) is None


LATE = [  # faults of long sequences: tokens, a seed, and the test that is for them, if one alone is
    (anysubset, "sequential: twins", 32_768, 0, "rows"),
    (anysubset, "sequential: backwards", 32_768, 0, "order"),
    (continuous, "mar: late reuse", 32_768, 0, "noise"),
    (discrete, "ar: twins of 9 to 64", 32_768, 0, "batches"),
    (discrete, "sjd: accept reuse", 32_768, 0, "noise"),
    (discrete, "sjd: late residual", 32_768, 0, "likelihood"),
    (anysubset, "sequential: twins of 9 to 64", 32_768, 0, "batches"),
    (continuous, "mar: twins of 9 to 64", 32_768, 0, "batches"),
    (discrete, "sjd: last", 65_536, 1, "positions"),
    (discrete, "ar: twins", 65_536, 1, "rows"),
    (discrete, "sjd: border", 65_536, 1, "slots"),
    (discrete, "sjd: late reuse", 65_536, 1, "distances"),
    *((discrete, f"sjd: {fault}", 65_536, 0, "") for fault in ("beyond 5", "tolerance", "one in 1000", "top-k")),
]


@pytest.mark.parametrize(("module", "method", "n", "seed", "test"), LATE, ids=[q[1] for q in LATE])
def test_a_fault_is_found_by_the_test_that_is_for_it(module, method, n, seed, test):
    (found,) = (try_out(t, [seed]) for t in module.long_trials(n) if t.method == method)
    assert found.as_required
    (rows,) = found.samples
    assert not test or [r["verdict"] for r in rows if r["test"] == test] == ["rejected"]


@pytest.mark.parametrize("kind", ["discrete", "anysubset", "continuous"])
def test_no_shipped_decoder_reads_a_number_at_two_places(kind):
    models = import_module(f"parity.equality.targets.{kind}")
    for method in methods(kind):
        module, own = import_module(f"parity_decoders.{kind}.{method}"), options(kind, method, {})
        if not runs_on_enumerable(kind, method, own):
            continue
        far = measure_reach(kind, method, own)
        (target,) = (t for t in models.long_targets(far, 2000, which=getattr(module, "TARGETS", "")) if t.alone)
        rows = target.rows_of(target.draw(getattr(module, method), 0, 5, own), "long", 5, 0)
        assert [(r["p_value"], r["n"] > 0) for r in rows if r["test"] == "noise"] == [(1.0, True)], method


def test_a_decoder_that_reads_no_number_is_not_tested_for_reuse():
    def own_numbers(model, start, *, noise, **options):
        """ar, by numbers that it makes by itself."""
        return ar(model, start, noise=Noise(noise.keys + 1, noise.dtype), **options)

    models, near = import_module("parity.equality.targets.discrete"), measure_reach("discrete", "ar", {})
    (target,) = (t for t in models.long_targets(near, 6400) if t.alone)
    (row,) = (r for r in target.rows_of(target.draw(own_numbers, 0, 0, {}), "long", 0, 0) if r["test"] == "noise")
    assert row["p_value"] is None and row["verdict"] == "not run" and row["note"].startswith("not run: needs numbers")
