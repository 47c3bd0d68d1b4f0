"""What ships of the self-tests is whole: every planted fault was looked for, and went as it must."""

from importlib import import_module
from itertools import chain

import pytest

from parity.equality import self_tests
from parity.experiment import code_digest
from parity.experiment.options import KINDS


@pytest.fixture(scope="module")
def shipped():
    """The results of the self-tests that ship with the package."""
    return self_tests.read()


def test_every_planted_decoder_is_in_what_ships(shipped):
    for kind in KINDS:
        module = import_module(f"parity.equality.faults.{kind}")
        trials = chain(module.make_trials(10_000, [0]), module.make_long_trials(65_536))
        assert {row["decoder"] for row in shipped.faults if row["kind"] == kind} == {t.method for t in trials}


def test_every_fault_was_found_and_no_size_is_off(shipped):
    """None: the sample was too small for the fault to show."""
    assert not shipped.failures
    assert {row["as_required"] for row in shipped.faults} <= {True, None}
    assert "size off" not in {row["verdict"] for row in shipped.sizes}
    assert len(shipped.sizes) > 20


def test_a_small_run_has_the_form_that_ships(shipped, monkeypatch):
    calibration = import_module("parity.equality.calibration")
    faults = import_module("parity.equality.faults.anysubset")
    monkeypatch.setattr(self_tests, "KINDS", ("anysubset",))
    monkeypatch.setattr(self_tests, "REPLICATES", 2)
    monkeypatch.setattr(faults, "VARIANTS", {"assd: all accepted": faults.VARIANTS["assd: all accepted"]})
    monkeypatch.setattr(faults, "make_long_trials", lambda n: iter(()))
    calibrate = calibration.calibrate
    monkeypatch.setattr(calibration, "calibrate", lambda replicates: calibrate(replicates, draws=99))
    result = self_tests.SelfTests(**self_tests.run())
    assert result.is_current()
    assert [row["hits"] for row in result.faults] == [2, 2]
    assert result.faults[0].keys() == shipped.faults[0].keys()
    assert result.sizes[0].keys() == shipped.sizes[0].keys()


def test_only_code_that_is_tested_makes_a_result_old():
    modules = code_digest.list_closure(*self_tests.MODULES)
    tested = {module for module in modules if module.startswith(self_tests.TESTED)}
    assert {"parity.equality.faults.discrete", "parity_decoders.verification", "parity_certify.joint_tests"} <= tested
    untested = ("parity.experiment", "parity.report", "parity.equality.self_tests")
    assert not [module for module in tested if module.startswith(untested)]
