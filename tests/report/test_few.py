"""Figures of too few images or texts say so; the same of many do not."""

import math

import pytest

from parity.report.few import EFFECTS, SHARES, effect_of_interest, half_width, too_few, too_few_of
from parity.report.tables import measured


def row(n, **figures):
    return {"kind": "discrete", "n": n, **figures}


def test_an_interval_that_holds_every_value_of_interest_is_said_to():
    kid = row(64, kid=-0.080, kid_se=0.251)
    assert too_few(kid, "kid") and not too_few(row(50_000, kid=0.012, kid_se=0.001), "kid")
    entry = measured("kid", 1000)(kid)
    assert entry.style == "few" and entry.detail.endswith("too few images") and "-80" in entry.text
    assert measured("kid", 1000)(row(50_000, kid=0.012, kid_se=0.001)).style == ""
    assert measured("perplexity")(row(8, perplexity=20.0, perplexity_se=2.0) | {"kind": "anysubset"}).detail.endswith(
        "too few texts"
    )


@pytest.mark.parametrize("name", [*EFFECTS, *SHARES])
def test_the_rule_is_the_effect_of_interest_against_half_of_the_interval(name):
    effect = effect_of_interest(name, 2.0)
    for share, wanted in ((0.9, False), (1.1, True)):
        assert too_few(row(64, **{name: 2.0, f"{name}_se": share * effect / 1.96}), name) == wanted
        assert (
            too_few(row(64, **{name: 2.0, f"{name}_low": 2 - share * effect, f"{name}_high": 2 + share * effect}), name)
            == wanted
        )


def test_one_image_says_nothing_and_counts_are_no_quality():
    assert too_few(row(1, fid=3.0, fid_se=float("nan")), "fid") and not too_few(row(9, fid=3.0), "fid")
    assert not too_few(row(1, nfe=30.0), "nfe") and not too_few(row(9, fid=None), "fid")
    assert too_few(row(9, fid=3.0, fid_se=math.inf), "fid") and half_width(row(9, fid=3.0), "fid") is None
    assert too_few_of(row(64, fid=15.0, fid_se=4.0, clip_score=0.8, clip_score_se=0.001)) == ["fid"]
