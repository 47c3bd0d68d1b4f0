"""Injected faults: every one is found, those too that show late, far, or in small batches; no correct one is.

python -m tests.equality.test_faults        write docs/reference/faults.md anew: which command finds which
"""

from importlib import import_module
from pathlib import Path

import pytest
from parity_certify.result_rows import make_row
from parity_decoders.discrete.ar import ar
from parity_decoders.noise import Noise

from parity.experiment.options import measure_reach, methods, options, runs_on_enumerable
from tests.equality.faults import Trial, anysubset, continuous, discrete, try_out

VARIANTS = {kind: kind.VARIANTS for kind in (discrete, anysubset, continuous)}
CASES = [(kind, name) for kind, variants in VARIANTS.items() for name in variants]
LONG = ("coupled: of drafts", "coupled: peeking", "coupled: inverted")  # those of CASES that take longest


def name_kind(module):
    return module.__name__.rsplit(".", 1)[1]


def mark(values, name, is_long):
    """Make a test's parameter of these values, marked `long` or not."""
    return pytest.param(*values, id=f"{name_kind(values[0])} {name}", marks=[pytest.mark.long] * is_long)


@pytest.mark.parametrize(("kind", "name"), [mark(case, case[1], case[1] in LONG) for case in CASES])
def test_faults_are_found_and_correct_decoders_are_not(kind, name):
    """A fault on one seed. A fault that shows only in more sequences is required of the larger trial alone."""
    n, seed = (10_000, 1) if kind is discrete else (20_000, 0)
    seeds = [0, 1] if VARIANTS[kind][name][1] == "none" else [seed]
    as_required = [try_out(t, seeds).as_required for t in kind.make_trials(n, seeds, draws=999) if t.method == name]
    assert False not in as_required
    assert True in as_required


@pytest.mark.parametrize(
    ("fault", "ps", "must_show", "as_required"),
    [
        ("none", (0.01, 0.4), True, True),
        ("none", (0.01, 0.02), True, False),
        ("stale", (0.01, 0.02), True, True),
        ("stale", (0.01, 0.4), True, False),
        ("stale", (0.01, 0.4), False, None),
    ],
)
def test_a_fault_must_be_found_on_every_seed(fault, ps, must_show, as_required):
    """A correct decoder may be rejected by chance once."""
    p_values = iter(ps)
    trial = Trial("it", fault, lambda _: [make_row("mutants", "all four", 9, p_value=next(p_values))], must_show)
    assert try_out(trial, [5, 6]).as_required is as_required


LATE = [  # faults of long sequences: module, name, tokens, seed, and the one test that must find it, or ""
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


# the faults of long sequences that no case of LATE is for
REST = [
    (kind, name, 65_536, 0, "")
    for kind in VARIANTS
    for name in kind.LONG
    if name not in [late for module, late, *_ in LATE if module is kind]
]


@pytest.mark.parametrize(
    ("module", "method", "n", "seed", "test"),
    [mark(case, case[1], False) for case in LATE] + [mark(case, case[1], True) for case in REST],
)
def test_a_fault_is_found_by_the_test_that_is_for_it(module, method, n, seed, test):
    (outcome,) = (try_out(t, [seed]) for t in module.make_long_trials(n) if t.method == method)
    (rows,) = outcome.samples
    assert outcome.as_required
    assert not test or [r["verdict"] for r in rows if r["test"] == test] == ["rejected"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["discrete", "anysubset", "continuous"])
def test_no_shipped_decoder_reads_a_number_at_two_places(kind):
    models = import_module(f"parity.equality.targets.{kind}")
    for method in methods(kind):
        module = import_module(f"parity_decoders.{kind}.{method}")
        defaults = options(kind, method, {})
        if not runs_on_enumerable(kind, method, defaults):
            continue
        long = models.long_targets(measure_reach(kind, method, defaults), 1000, which=getattr(module, "TARGETS", ""))
        (target,) = (t for t in long if t.tests_batches)
        rows = target.make_rows(target.draw(getattr(module, method), 0, 5, defaults), "long", 5, 0)
        assert [(r["p_value"], r["n"] > 0) for r in rows if r["test"] == "noise"] == [(1.0, True)], method


def test_a_decoder_that_reads_no_number_is_not_tested_for_reuse():
    def make_numbers(model, start, *, noise, **options):
        """Decode by `ar` with another noise than the given one, whose numbers are then never read."""
        return ar(model, start, noise=Noise(noise.keys + 1, noise.dtype), **options)

    models = import_module("parity.equality.targets.discrete")
    (target,) = (t for t in models.long_targets(measure_reach("discrete", "ar", {}), 6400) if t.tests_batches)
    rows = target.make_rows(target.draw(make_numbers, 0, 0, {}), "long", 0, 0)
    (row,) = (r for r in rows if r["test"] == "noise")
    assert (row["p_value"], row["verdict"]) == (None, "not run")
    assert row["note"].startswith("not run: needs numbers")


TABLE = Path(__file__).parents[2] / "docs/reference/faults.md"
HEAD = """# Injected faults

Decoders that are wrong in one place, and which command finds them: README's second, or `.ci/run`, which runs the tests
marked `long` as well. Written by `python -m tests.equality.test_faults`.

| kind | decoder: fault | found by |
|---|---|---|
"""


def format_table():
    """Format the page that lists each injected fault and the command that finds it."""
    faults = [(kind, name, name in LONG) for kind, name in CASES if VARIANTS[kind][name][1] != "none"]
    faults += [(kind, name, False) for kind, name, *_ in LATE] + [(kind, name, True) for kind, name, *_ in REST]
    found_by = ("README's command", "`.ci/run`")
    lines = [f"| {name_kind(kind)} | {name} | {found_by[is_long]} |\n" for kind, name, is_long in faults]
    return HEAD + "".join(lines)


def test_the_table_says_which_command_finds_a_fault():
    assert TABLE.read_text() == format_table(), "run python -m tests.equality.test_faults"


if __name__ == "__main__":
    TABLE.write_text(format_table())
