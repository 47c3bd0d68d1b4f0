"""Correct verifiers are certified, injected faults are lossy, and what is no verifier is one line."""

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
    certificate = certify_verifier(verify, shape=shape, problems=problems, margin=0.1, **SMALL)
    assert certificate.verdict.kind == "certified" and certificate.verdict.tested == problems, str(certificate)
    assert certificate.verdict.bound <= 0.1 and 0 < certificate.details["accepted"] < certificate.details["drafted"]


@pytest.mark.parametrize("name", FAULTS)
def test_injected_faults_are_lossy(name):
    verify, shape, problems = FAULTS[name]
    # Trees take long, as they are drawn node by node: their margin is wider, for fewer samples.
    certificate = certify_verifier(verify, shape=shape, problems=problems, margin=0.1 if shape == "tree" else 0.01)
    assert certificate.verdict.kind == "lossy" and certificate.exit_code == 1, str(certificate)


def verify_row(draft_tokens, draft_probs, target_probs):
    """Verify drafts of one row by speculative sampling; return the accepted ones and one more token."""
    for i, token in enumerate(draft_tokens):
        if random.random() * draft_probs[i, token] >= target_probs[i, token]:
            residual = np.maximum(target_probs[i] - draft_probs[i], 0)
            return [*draft_tokens[:i], random.choices(range(len(residual)), residual)[0]]
    return [*draft_tokens, random.choices(range(len(target_probs[-1])), target_probs[-1])[0]]


def test_rows_one_by_one_give_the_same_verdict_by_seed():
    certificate, repeated = (certify_verifier(verify_row, margin=0.1, problems=("soft",), **SMALL) for _ in range(2))
    assert certificate.verdict.kind == "certified" and certificate.verdict == repeated.verdict
    assert (certificate.counts == repeated.counts).all()


def test_a_caller_that_draws_the_bonus_itself_is_certified():
    def drop_bonus(tokens, q, p, rng):
        """Verify a chain, but leave out the token after all drafts."""
        return chain(tokens, q, p, rng)[:, :-1]

    assert certify_verifier(drop_bonus, shape="batch", margin=0.1, **SMALL).verdict.kind == "certified"


def test_nothing_accepted_or_equal_distributions_alone_are_inconclusive():
    def accept_none(tokens, q, p, rng):
        """Accept no draft, and draw a token of the target."""
        return (rng.random(len(p))[:, None] >= p[:, 0].cumsum(1)).sum(1).clip(max=2)[:, None]

    certificate = certify_verifier(accept_none, shape="batch", margin=0.1, **SMALL)
    assert certificate.verdict.kind == "inconclusive" and "accepted" in certificate.verdict.reason
    assert (
        certify_verifier(chain, shape="batch", margin=0.1, problems=("equal",), **SMALL).verdict.kind == "inconclusive"
    )


def return_value(value):
    """Make settings of a certification whose verifier always returns this value."""
    return {"verify": lambda tokens, q, p: value, "problems": ("soft",), **SMALL}


def change_distributions(**changes):
    """Make settings of a certification with the tables `draft` or `target` of its problem replaced."""
    problem = make_problem("soft", 3, 2)
    tables = {"draft": problem.draft.copy(), "target": problem.target.copy()} | changes
    return {"verify": chain, "shape": "batch", "problems": [Problem("mine", **tables)], **SMALL}


def spoil_table(value):
    """Make a problem's target table with one wrong entry."""
    table = make_problem("soft", 3, 2).target.copy()
    table[4, 1] = value
    return table


def greedy(tokens, q, p):
    """Return the likeliest token at each position, after drafts that are these."""
    best = p.argmax(-1)
    kept = (np.cumprod(tokens == best[:, :-1], 1)).sum(1)
    return np.where(np.arange(best.shape[1]) <= kept[:, None], best, -1)


def test_a_verifier_that_always_returns_the_likeliest_token_is_lossy():
    certificate = certify_verifier(greedy, shape="batch", problems=("soft",), margin=0.1, **SMALL)
    assert certificate.verdict.kind == "lossy", str(certificate)


def reseed(tokens, q, p):
    """Verify a chain with the same random numbers in each call."""
    return chain(tokens, q, p, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (change_distributions(target=spoil_table(0.9)), "distribution: mine, target, row 4: not a distribution"),
        (change_distributions(target=spoil_table(np.nan)), "distribution: mine, target, row 4: not a distribution"),
        (change_distributions(draft=np.ones((2, 3)) / 3), r"mine, draft: shape \(2, 3\); allowed: \(4, 3\)"),
        ({"verify": chain, "vocab": 50}, r"vocab 50, drafts 3: .* vocab\^\(drafts \+ 1\) up to 20000"),
        ({"verify": chain, "shape": "forest"}, "shape 'forest': allowed: row, batch, tree"),
        ({"verify": chain, "problems": ("hard",)}, "problems: 'hard'; allowed: soft, sparse, point, equal"),
        (return_value([]), r"verify: row 0: \[\]; allowed: 1 to 3 integers of 0 to 2"),
        (return_value([0, 3]), r"verify: row 0: \[0, 3\]; allowed"),
        (
            {"verify": reseed, "shape": "batch", "problems": ("soft",), **SMALL},
            "the same samples under different seeds",
        ),
        (return_value([0, 1]) | {"shape": "tree"}, "verify: failed on shape 'tree': TypeError"),
        (return_value([[0.0, 1.0]] * 200) | {"shape": "batch"}, "verify: tokens of float64; allowed: integers"),
        (return_value([[0, 1]]) | {"shape": "batch"}, r"verify: shape \(1, 2\); allowed: \[200, 3\]"),
    ],
)
def test_bad_input_is_one_line_that_names_it(call, message):
    call = dict(call)
    with pytest.raises(ParityError, match=message) as caught:
        certify_verifier(call.pop("verify"), **call)
    assert "\n" not in str(caught.value)


def test_correct_verifiers_keep_the_level():
    """20 repeats of a cheap case at alpha .2: at most 9 by the binomial (99 %).
    `certify/benchmarks/verifier_level.py` does 200 of each at .05."""
    rejected = 0
    for seed in range(20):
        settings = {"problems": ("soft", "sparse"), "n": 400, "alpha": 0.2, "seeds": (seed,), "vocab": 2, "drafts": 2}
        certificate = certify_verifier(chain, shape="batch", **settings)
        rejected += any(r["decides"] and r["verdict"] == "rejected" for r in certificate.rows)
    assert rejected <= 9
