"""Correct verifiers are certified, planted faults are lossy, and what is no verifier is one line."""

import random

import numpy as np
import pytest

from parity_certify.errors import ParityError
from parity_certify.verifier import Problem, certify_verifier, make_problem
from parity_certify.verifiers import CORRECT, FAULTS, chain

SMALL = {"vocab": 3, "drafts": 2}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_verifiers_are_certified(name):
    verify, shape, problems = CORRECT[name]
    found = certify_verifier(verify, shape=shape, problems=problems, margin=0.1, **SMALL)
    assert found.verdict.kind == "certified" and found.verdict.tested == problems, str(found)
    assert found.verdict.bound <= 0.1 and 0 < found.details["accepted"] < found.details["drafted"]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_lossy(name):
    verify, shape, problems = FAULTS[name]
    # a tree is drawn node by node; the others at the size that a margin of .01 takes
    found = certify_verifier(verify, shape=shape, problems=problems, margin=0.1 if shape == "tree" else 0.01)
    assert found.verdict.kind == "lossy" and found.exit_code == 1, str(found)


def one_row(draft_tokens, draft_probs, target_probs):
    """Speculative sampling with Python's generator, a row at a time."""
    for i, token in enumerate(draft_tokens):
        if random.random() * draft_probs[i, token] >= target_probs[i, token]:
            residual = np.maximum(target_probs[i] - draft_probs[i], 0)
            return [*draft_tokens[:i], random.choices(range(len(residual)), residual)[0]]
    return [*draft_tokens, random.choices(range(len(target_probs[-1])), target_probs[-1])[0]]


def test_a_row_at_a_time_gives_the_same_verdict_from_the_same_seed():
    found, again = (certify_verifier(one_row, margin=0.1, problems=("soft",), **SMALL) for _ in range(2))
    assert found.verdict.kind == "certified" and found.verdict == again.verdict
    assert (found.counts == again.counts).all()


def test_a_caller_that_draws_the_bonus_itself_is_certified():
    def no_bonus(tokens, q, p, rng):
        return chain(tokens, q, p, rng)[:, :-1]

    assert certify_verifier(no_bonus, shape="batch", margin=0.1, **SMALL).verdict.kind == "certified"


def test_nothing_accepted_or_equal_laws_alone_are_inconclusive():
    def never(tokens, q, p, rng):
        return (rng.random(len(p))[:, None] >= p[:, 0].cumsum(1)).sum(1).clip(max=2)[:, None]

    found = certify_verifier(never, shape="batch", margin=0.1, **SMALL)
    assert found.verdict.kind == "inconclusive" and "accepted" in found.verdict.reason
    assert (
        certify_verifier(chain, shape="batch", margin=0.1, problems=("equal",), **SMALL).verdict.kind == "inconclusive"
    )


def returns(value):
    return {"verify": lambda tokens, q, p: value, "problems": ("soft",), **SMALL}


def laws(**changes):
    own = make_problem("soft", 3, 2)
    tables = {"draft": own.draft.copy(), "target": own.target.copy()} | changes
    return {"verify": chain, "shape": "batch", "problems": [Problem("mine", **tables)], **SMALL}


def spoiled(value):
    table = make_problem("soft", 3, 2).target.copy()
    table[4, 1] = value
    return table


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (laws(target=spoiled(0.9)), "law: mine, target, row 4: not a law"),
        (laws(target=spoiled(np.nan)), "law: mine, target, row 4: not a law"),
        (laws(draft=np.ones((2, 3)) / 3), r"mine, draft: shape \(2, 3\); allowed: \(4, 3\)"),
        ({"verify": chain, "vocab": 50}, r"vocab 50, drafts 3: .* vocab\^\(drafts \+ 1\) up to 20000"),
        ({"verify": chain, "shape": "forest"}, "shape 'forest': allowed: row, batch, tree"),
        ({"verify": chain, "problems": ("hard",)}, "problems: 'hard'; allowed: soft, sparse, point, equal"),
        (returns([]), r"verify: row 0: \[\]; allowed: 1 to 3 integers of 0 to 2"),
        (returns([0, 3]), r"verify: row 0: \[0, 3\]; allowed"),
        (returns([0, 1]), "verify: the same tokens under different seeds"),
        (returns([0, 1]) | {"shape": "tree"}, "verify: failed on shape 'tree': TypeError"),
        (returns([[0.0, 1.0]] * 200) | {"shape": "batch"}, "verify: tokens of float64; allowed: integers"),
        (returns([[0, 1]]) | {"shape": "batch"}, r"verify: shape \(1, 2\); allowed: \[200, 3\]"),
    ],
)
def test_bad_input_is_one_line_that_names_it(call, message):
    call = dict(call)
    with pytest.raises(ParityError, match=message) as caught:
        certify_verifier(call.pop("verify"), **call)
    assert "\n" not in str(caught.value)


def test_correct_verifiers_are_rejected_no_more_often_than_alpha():
    """20 repeats of a cheap case at alpha .2: at most 9 by the binomial (99 %). `benchmarks/verifier_level.py` does
    200 of each at .05."""
    rejected = 0
    for seed in range(20):
        settings = {"problems": ("soft", "sparse"), "n": 400, "alpha": 0.2, "seeds": (seed,), "vocab": 2, "drafts": 2}
        found = certify_verifier(chain, shape="batch", **settings)
        rejected += any(r["decides"] and r["verdict"] == "rejected" for r in found.rows)
    assert rejected <= 9
