"""Tests of the tests: rows of their own, and sentences that are true."""

from dataclasses import replace

import pandas as pd
import pytest
from parity_certify.result_rows import row

from parity.report.page import build, sections
from parity.report.verdicts import RIGHT, WRONG, planted


def made(method, fault, ps, required=True, models=("m",)):
    place = {"method": method, "key": fault, "as_required": required}
    each = [(model, seed, p) for model in models for seed, p in enumerate(ps)]
    return [row("mutants", "all four", 9, p_value=p, model=m, seed=s, repeat=s, **place) for m, s, p in each]


@pytest.mark.parametrize(
    ("fault", "ps", "required", "said", "verdict"),
    [
        ("none", (0.4, 0.6), True, "rejected in none of 2", RIGHT),
        ("none", (0.01, 0.6), True, "by chance, and not again", RIGHT),
        ("none", (0.01, 0.02), False, "a false alarm", WRONG),
        ("residual p", (1e-9, 1e-9), True, "found in all 2 samples", RIGHT),
        ("residual p", (1e-9, 0.3), False, "missed in 1 of 2 samples", WRONG),
        ("accept +0.01", (0.2, 0.3), None, "too few sequences for it", ""),
    ],
)
def test_the_outcome_of_a_planted_decoder_is_said_as_it_is(fault, ps, required, said, verdict):
    frame = pd.DataFrame([r | {"self_test": True} for r in made("it", fault, ps, required)])
    (found,) = planted(frame)
    assert said in found["outcome"] and found["verdict"] == verdict
    assert ("caught" not in found["outcome"]) and found["outcome"].startswith("correct") == (fault == "none")


def test_effect_and_p_of_a_planted_decoder_are_of_one_sample():
    rows = [*made("it", "shared uniform", (1e-9,), models=("a",)), *made("it", "shared uniform", (0.3,), models=("b",))]
    for effect, one in zip((0.7, 0.01), rows, strict=True):
        one["effect"] = effect
    (found,) = planted(pd.DataFrame(rows))
    assert (found["largest_p"], found["effect"], found["model"]) == (0.3, 0.01, "b")


def test_the_first_screen_says_that_a_self_test_failed(gathered):
    def front_page(g):
        return build("made", sections(g), "report.html")[0]

    assert "self-test" not in front_page(gathered).partition("<h2>Verdicts</h2>")[2].partition("<table")[0]
    missed = pd.DataFrame([r | {"kind": "discrete", "self_test": True} for r in made("it", "residual p", (1e-9, 0.3))])
    red = replace(gathered, equality=pd.concat([gathered.equality, missed], ignore_index=True))
    begin = front_page(red).partition("<h2>Verdicts</h2>")[2].partition("<table")[0]
    assert "1 self-test failed" in begin and "it (missed in 1 of 2 samples)" in begin
