"""Figures of too few images or texts say so; the same of many do not."""

import math

import pytest

from parity.experiment.schema import EqualitySpec
from parity.report.collect import EFFECTS, MARGINS, SHARES, effect_of_interest, too_few, too_few_of
from parity.report.tables import measured

USUAL = EqualitySpec()


def row(n, **figures):
    return {"kind": "discrete", "n": n, **figures}


def judged(row, margins=USUAL):
    """As the summary holds it."""
    return row | {"too_few": " ".join(too_few_of(row, margins))}


def test_an_interval_that_holds_every_value_of_interest_is_said_to():
    kid, sure = row(64, kid=-0.080, kid_se=0.251), row(50_000, kid=0.012, kid_se=0.001)
    assert too_few(kid, "kid", USUAL) and not too_few(sure, "kid", USUAL)
    entry = measured("kid", 1000)(judged(kid))
    assert entry.style == "few" and entry.detail.endswith("too few images") and "-80" in entry.text
    assert measured("kid", 1000)(judged(sure)).style == ""
    text = judged(row(8, perplexity=20.0, perplexity_se=2.0) | {"kind": "anysubset"})
    assert measured("perplexity")(text).detail.endswith("too few texts")


@pytest.mark.parametrize("name", [*list(EFFECTS)[:1], *list(MARGINS)[:1], *list(SHARES)[:1]])
def test_the_rule_is_the_effect_of_interest_against_half_of_the_interval(name):
    effect = effect_of_interest(name, 2.0, USUAL)
    for share, wanted in ((0.9, False), (1.1, True)):
        given = {name: 2.0, f"{name}_se": share * effect / 1.96}
        assert too_few(row(64, **given), name, USUAL) == wanted
        given = {name: 2.0, f"{name}_low": 2 - share * effect, f"{name}_high": 2 + share * effect}
        assert too_few(row(64, **given), name, USUAL) == wanted


def test_one_image_says_nothing_and_counts_are_no_quality():
    assert too_few(row(1, fid=3.0, fid_se=float("nan")), "fid", USUAL) and not too_few(row(9, fid=3.0), "fid", USUAL)
    assert not too_few(row(1, nfe=30.0), "nfe", USUAL) and not too_few(row(9, fid=None), "fid", USUAL)
    assert too_few(row(9, fid=3.0, fid_se=math.inf), "fid", USUAL)
    both = row(64, fid=15.0, fid_se=4.0, clip_score=0.8, clip_score_se=0.001)
    assert too_few_of(both, USUAL) == ["fid"]
