"""A verdict is a value: words, pills, exit codes and JSON are made from it."""

import dataclasses
import json

import pytest

from parity_certify.result_rows import row
from parity_certify.verdict import WITHIN, Verdict, verdicts


@pytest.mark.parametrize(
    ("verdict", "words", "pill", "code"),
    [
        (Verdict("certified", bound=0.0123), "certified lossless", "certified lossless, TV <= 0.012", 0),
        (Verdict("consistent", bound=0.2), "consistent", "consistent, TV <= 0.200", 0),
        (Verdict("consistent"), "consistent", "consistent", 0),
        (Verdict("lossy", bound=0.3, estimate=0.25), "lossy: TV = 0.2500", "lossy: TV = 0.2500", 1),
        (Verdict("lossy"), "lossy: TV not measured", "lossy: TV not measured", 1),
        (Verdict("inconclusive", bound=0.1), "inconclusive", "inconclusive", 2),
        (Verdict("certified", within=True), WITHIN, WITHIN, 0),
        (Verdict("lossy", within=True), "differs by more than eps", "differs by more than eps", 1),
    ],
)
def test_words_pill_and_exit_code_are_made_from_the_value(verdict, words, pill, code):
    assert (verdict.words, verdict.pill, verdict.exit_code) == (words, pill, code)
    said = json.loads(json.dumps(verdict.json()))
    assert said["kind"] == verdict.kind and said["exit_code"] == code and said["bound"] == verdict.bound
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.kind = "certified"


def test_the_judge_returns_the_value_with_what_was_tested():
    bound = row("exact", "TV certificate", 5000, effect=0.004, minimum_detectable_effect=0.01, decides=False)
    bound |= {"tv": 0.001, "tv_low": 0.0, "tv_high": 0.005, "method": "d"}
    test = row("exact", "all four", 5000, p_value=0.4, p_holm=0.4, method="d")
    (found,) = verdicts([test, bound], {"d": "lossy"}, 0.01)
    v = found["value"]
    assert (v.kind, v.bound, v.estimate, v.interval, v.n, v.tested) == (
        "certified", 0.004, 0.001, (0.0, 0.005), 5000, ("exact",),
    )  # fmt: skip
    assert found["verdict"] == v.words and found["mismatch"] and v.breaks("lossy") and not v.breaks("lossless")
