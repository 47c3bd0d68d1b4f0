"""Planted faults: every one is found, no correct decoder is, and a kind's faults are one file."""

import sys

import pytest
from parity_certify.result_rows import row

from parity.equality.faults import Trial, altered, anysubset, continuous, discrete, planted

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
    found = planted((t for t in kind.trials(n, seeds, draws=999) if t.method == name), seeds)
    required = [r["as_required"] for r in found if r["test"] == "all four"]
    assert False not in required and True in required, required


def test_a_control_may_be_rejected_by_chance_once_and_a_fault_must_be_found_each_time():
    def trial(fault, ps, enough=True):
        values = iter(ps)
        return Trial("it", fault, lambda seed: [row("mutants", "all four", 9, p_value=next(values))], enough)

    def required(*trials):
        return [r["as_required"] for r in planted(trials, [5, 6])]

    assert required(trial("none", (0.01, 0.4))) == [True, True] and required(trial("none", (0.01, 0.02))) == [False] * 2
    assert required(trial("stale", (0.01, 0.02))) == [True] * 2 and required(trial("stale", (0.01, 0.4))) == [False] * 2
    assert required(trial("stale", (0.01, 0.4), enough=False)) == [None] * 2
    found = planted([trial("stale", (1, 1))], [5, 6])
    assert [(r["method"], r["key"], r["seed"], r["repeat"]) for r in found] == [
        ("it", "stale", 5, 0),
        ("it", "stale", 6, 1),
    ]


def test_an_altered_copy_leaves_the_decoder_as_it_is():
    module = "parity.decoders.anysubset.assd"
    copy = altered(module, verify=len)
    assert copy.verify is len and sys.modules[module].verify is not len and copy.assd is not sys.modules[module].assd
    with pytest.raises(AttributeError, match="verified"):
        altered(module, verified=len)
