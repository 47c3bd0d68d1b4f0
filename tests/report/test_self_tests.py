"""The page shows the self-tests that ship: their date, what was missed, and whether the code has changed since."""

from dataclasses import replace

import pytest

from parity.equality.self_tests import SelfTests, digest_code
from parity.report import self_tests
from parity.report.page import build_page

FAULT = {"kind": "discrete", "layer": "long", "decoder": "it", "fault": "stale", "model": "m", "test": "rows", "n": 9}
FAULT |= {"samples": 2, "hits": 2, "as_required": True, "largest_p": 1e-9, "effect": 0.1}
SIZE = {"test": "pairs", "n": 400, "effect": 0.05, "low": 0.03, "high": 0.07, "verdict": "size ok"}


@pytest.fixture(scope="module")
def passed():
    """Results of self-tests of today's code in which nothing was missed."""
    return SelfTests(digest_code(), "2026-11-25", 300.0, [FAULT], [SIZE])


def build_html(tests):
    return build_page("made", [self_tests.show_self_tests(tests)])[0]


def test_the_page_says_when_self_tests_ran(passed):
    assert "2026-11-25" in build_html(passed)
    assert "found in 2 of 2 samples" in build_html(passed)


def test_the_page_warns_only_where_the_tested_code_has_changed(passed):
    assert "snakemake self_tests" not in build_html(passed)
    assert "snakemake self_tests" in build_html(replace(passed, code="another"))


def test_the_first_screen_warns_of_a_fault_that_was_missed(passed):
    assert self_tests.warn_of_failures(passed) == ""
    missed = replace(passed, faults=[FAULT, FAULT | {"hits": 1, "as_required": False}])
    assert self_tests.warn_of_failures(missed).startswith("1 self-test failed")
