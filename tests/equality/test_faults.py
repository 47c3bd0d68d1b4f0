"""Planted faults: every one is found, no correct decoder is, and a kind's faults are one file."""

import sys

import pytest
from parity_certify.result_rows import row

from parity.equality import __main__ as command
from parity.equality import faults
from parity.equality.faults import Trial, altered, anysubset, continuous, discrete, planted
from parity.experiment.schema import EqualitySpec

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


def test_at_least_ten_faults_are_planted_in_discrete_decoders():
    assert len({fault for _, fault in discrete.VARIANTS.values()} - {"none"}) >= 10


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


TOY = """
from functools import partial

from parity.decoders.discrete.ar import ar
from parity.equality.faults import Trial
from parity.equality.targets.discrete import targets


def zeros(model, start, *, noise):
    for step in ar(model, start, noise=noise):
        yield step._replace(tokens=step.tokens * 0)


def trials(n, seeds, draws=1999, threads=1):
    target = targets("small")[0]

    def sample(decoder, seed):
        return target.rows_of(target.draw(decoder, n, seed, {}), "mutants", seed, draws)

    yield Trial("zeros", "always zero", partial(sample, zeros))
    yield Trial("ar", "none", partial(sample, ar))
"""


def test_a_file_of_faults_suffices(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(faults, "__path__", [*faults.__path__, str(tmp_path)])
    trials = command.leaf("parity.equality.faults.toy").trials(2000, [0, 1], draws=199)
    found = [r for r in planted(trials) if r["test"] == "all four"]
    assert [r["as_required"] for r in found] == [True] * 4 and [r["key"] for r in found] == ["always zero"] * 2 + [
        "none"
    ] * 2
    assert [r["verdict"] for r in found[:2]] == ["rejected"] * 2


@pytest.mark.parametrize("fault", ["shared uniform", "draft kept as condition"])
def test_subtle_faults_of_any_subset_decoders_are_found_at_the_default_size(fault, monkeypatch):
    """On each target and eight seeds: the law of a target must differ by more than the sample's noise."""
    decoder = anysubset.VARIANTS[f"assd: {fault}"]
    monkeypatch.setattr(anysubset, "VARIANTS", {"it": decoder})
    n = EqualitySpec().anyorder
    rows = planted(anysubset.trials(n, range(8), draws=199), range(8))
    assert len({r["model"] for r in rows}) == 2
    assert all(r["as_required"] for r in rows if r["test"] == "all four")
