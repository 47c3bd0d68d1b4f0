"""Verdicts say at which options and on which models they were reached, and what of their own was not tested; of planted
decoders, that they were found."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from parity_certify.result_rows import row
from parity_certify.verdict import verdicts

from parity.report import summary_page
from parity.report.page import build
from parity.report.verdicts import RIGHT, WRONG, Scope, add_reach, planted

FIVE = {"random-0 3x5": 5, "flat 3x5": 5}  # and their tokens


def exact(p=0.5, tv=0.0, models=FIVE, repeat=0):
    place = {"method": "it", "key": "k", "repeat": repeat, "seed": repeat}
    bound = {"effect": tv + 0.01, "minimum_detectable_effect": 0.01, "decides": False, "verdict": "TV"}
    bound |= {"tv": tv, "tv_low": 0.9 * tv, "tv_high": tv + 0.01}
    found = []
    for model, tokens in models.items():
        place |= {"model": model, "tokens": tokens}
        found.append(row("exact", "all four", 10_000, p_value=p, p_holm=p, **place))
        found.append(row("exact", "TV certificate", 10_000, **bound, **place))
    return found + (exact(p, tv, models, 1) if p < 0.05 and not repeat else [])


def long(p=0.5, tokens=64, repeat=0):
    place = {"method": "it", "key": "k", "repeat": repeat, "seed": repeat}
    place |= {"model": f"a chain of {tokens}", "tokens": tokens}
    figures = {"p_value": p, "p_holm": p, "effect": 0.1, "minimum_detectable_effect": 0.011}
    found = [row("long", "distances", 60_000, **figures, **place)]
    return found + (long(p, tokens, 1) if p < 0.05 and not repeat else [])


def judged(rows, own, cut, kind="discrete", tokens=64):
    (v,) = verdicts(rows, {"it": "lossless"}, 0.02)
    return v | add_reach(v, rows, Scope(kind, own, cut, tokens), 0.05)


W, CUT = {"window": 16}, {"window": 3}
THREE, TWO = "at window 3 on 5 tokens", "at interval 2 on 5 tokens"
FAR, LOSSY = long(tokens=256), exact(1e-9, 0.65)
CASES = [  # rows, own options, those of the exact layer; the scope, and whether its own were tested
    ([*exact(), *long()], W, CUT, f"{THREE}; window 16 consistent on 64 tokens", "tested"),
    ([*exact(), *long()], {}, {}, "on 5 tokens, consistent on 64 tokens", "tested"),
    (exact(), W, CUT, f"{THREE}; window 16 not tested", "not tested"),
    (exact(), {}, {}, "on 5 tokens", "tested"),
    ([*exact(), *FAR], {"window": 200}, CUT, f"{THREE}; window 200 not tested", "not tested"),
    ([*LOSSY, *long(1e-9)], {"interval": 4}, {"interval": 2}, f"{TWO}; interval 4 rejected on 64 tokens", "tested"),
    ([*LOSSY, *long()], {"interval": 4}, {"interval": 2}, f"{TWO}; interval 4 not rejected on 64 tokens", "tested"),
    ([*exact(), *long(1e-9)], W, CUT, "at window 16 on 64 tokens", "tested"),
    (
        exact(models={"mixture": 3}), {"gamma": 8}, {"gamma": 3},
        "at gamma 3 on 3 tokens; gamma 8 not tested", "not tested",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "own", "cut", "scope", "tested"), CASES)
def test_the_scope_says_where_the_verdict_was_reached(rows, own, cut, scope, tested):
    v = judged(rows, own, cut, "continuous" if "gamma" in own else "discrete")
    assert (v["scope"], v["own_options"]) == (scope, tested)
    assert v["pill"] in ("certified, TV ≤ 0.010", "lossy, TV = 0.65", "lossy")
    assert "joint law" in v["reach"] and "model" in v["tested_models"] and v["value"].tested
    assert bool(v["value"].untested) == (tested == "not tested")


def test_a_verdict_reaches_as_far_as_all_of_its_tests():
    """One model of 256 tokens among those of 64 takes a window of 100 no further; a run of more than the longest of
    them says so."""
    both, own = [*exact(), *long(), *long(tokens=256)], {"window": 100}
    assert judged(both, own, CUT)["own_options"] == "not tested"
    assert judged([*exact(), *FAR], own, CUT)["own_options"] == "tested"
    assert judged(both, W, CUT, tokens=256)["scope"] == f"{THREE}; window 16 consistent on 64 to 256 tokens"
    near = judged([*exact(), *long()], W, CUT, tokens=256)["scope"]
    assert near == f"{THREE}; window 16 consistent to 64 of 256 tokens"
    assert judged(exact(models={"one": 4, "two": 5}), {}, {})["scope"] == "on 4 to 5 tokens"


def test_a_continuous_cell_is_judged_by_its_exact_and_its_long_rows_together(gathered):
    """The exact layer cuts gamma, the long layer does not: one name holds both, and the cell's scope says both."""
    cspd = gathered.summary[(gathered.summary["method"] == "cspd") & (gathered.summary["role"] == "method")]
    assert len(cspd)
    for options, scope in zip(cspd["options"], cspd["scope"], strict=True):
        assert f"gamma {json.loads(options)['gamma']}, prefill 0.05 consistent on 64 tokens" in scope


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


def test_the_first_screen_says_that_a_self_test_failed(gathered, undrawn):
    def front_page(g):
        return build("made", [summary_page.verdicts(g)])[0].partition("<h2>Verdicts</h2>")[2].partition("<table")[0]

    assert "self-test" not in front_page(gathered)
    missed = pd.DataFrame([r | {"kind": "discrete", "self_test": True} for r in made("it", "residual p", (1e-9, 0.3))])
    red = replace(gathered, equality=pd.concat([gathered.equality, missed], ignore_index=True))
    begin = front_page(red)
    assert "1 self-test failed" in begin and "it (missed in 1 of 2 samples)" in begin
