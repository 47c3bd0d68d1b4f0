"""Rounds of speculation: the drafter is inside the test; faults that `certify_verifier` cannot see are found."""

import numpy as np
import pytest

from parity_certify import Speculated, certify_speculation, certify_verifier
from parity_certify.errors import ParityError
from parity_certify.processors import softmax
from parity_certify.verifiers import chain, draw_tokens

SMALL = {"vocab": 3, "drafts": 2, "margin": 0.1, "draws": 999}


def round_to_bfloat16(p):
    """Round probabilities as bfloat16 does."""
    bits = p.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)


def make_speculation(fault="", compared=False):
    """Make the function of a batch with a fault of the drafter, or of what passes from it to the verifier."""

    def speculate(draft_model, target_model, prefixes, drafts, rng):
        """Draft, record, verify."""
        out, distributions, drawn_from = prefixes, [], []
        state = rng.bit_generator.state
        for _ in range(drafts):
            q = softmax(draft_model(out))
            drawn_from.append(round_to_bfloat16(q) if fault == "drawn from bfloat16" else q)
            token = q.argmax(1) if fault == "greedy drafts, soft q" else draw_tokens(drawn_from[-1], rng)
            out = np.concatenate([out, token[:, None]], 1)
            distributions.append(q)
        distributions = np.stack(distributions, 1)
        p = np.stack([softmax(target_model(out[:, :t])) for t in range(drafts + 1)], 1)
        recorded = distributions.copy()
        if fault == "q overwritten":
            recorded[:, :-1] = recorded[:, 1:]
        if fault == "shared noise":
            rng.bit_generator.state = state
        tokens = chain(out[:, prefixes.shape[1] :], recorded, p, rng)
        return Speculated(tokens, recorded, np.stack(drawn_from, 1)) if compared else tokens

    return speculate


def test_a_correct_round_is_certified():
    """Also where the recorded distributions are compared; the drafts are counted."""
    for compared in (False, True):
        c = certify_speculation(make_speculation(compared=compared), shape="batch", **SMALL)
        assert c.verdict.kind == "certified" and 0 < c.details["accepted"] < c.details["drafted"], str(c)
        assert c.details["furthest"] < 1e-12


@pytest.mark.parametrize("fault", ["q overwritten", "greedy drafts, soft q", "shared noise"])
def test_faults_of_the_drafter_are_lossy(fault):
    """Noise is shared row by row, where the verifier draws what the drafter drew."""
    speculate = make_speculation(fault)

    def speculate_row(draft_model, target_model, prefix, drafts, rng):
        """Speculate for a batch of one row."""
        tokens = speculate(draft_model, target_model, prefix[None], drafts, rng)[0]
        return tokens[tokens >= 0]

    shared = fault == "shared noise"
    function, shape = (speculate_row, "row") if shared else (speculate, "batch")
    c = certify_speculation(function, shape=shape, **SMALL)
    assert c.verdict.kind == "lossy", str(c)


def test_a_recorded_distribution_that_no_sample_tells_from_the_drawn_one_is_found_by_comparison():
    """Drafts drawn from bfloat16 and float32 recorded, .002 apart: certified as far as samples go."""
    fault = "drawn from bfloat16"
    assert certify_speculation(make_speculation(fault), shape="batch", **SMALL).verdict.kind == "certified"
    c = certify_speculation(make_speculation(fault, compared=True), shape="batch", **SMALL)
    assert c.exit_code == 1 and 1e-5 < c.details["furthest"] < 0.01 and "recorded q is up to" in c.verdict.reason, str(
        c
    )


def test_rows_one_by_one():
    def speculate(draft_model, target_model, prefix, drafts, rng):
        """Match: draw from the target, and go on while the draft is the same."""
        out = list(prefix)
        for _ in range(drafts + 1):
            draft = int(softmax(draft_model(out)[None]).argmax()) if len(out) < drafts else -1
            out.append(int(rng.choice(3, p=softmax(target_model(out)[None])[0])))
            if out[-1] != draft:
                break
        return out

    c = certify_speculation(speculate, problems=("soft",), **SMALL)
    assert c.verdict.kind == "certified", str(c)


def test_what_is_outside_of_a_verifier_is_told():
    c = certify_verifier(chain, shape="batch", problems=("soft",), **SMALL)
    assert any("the drafter" in text and "certify_speculation" in text for text in c.verdict.untested)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda d, t, x, k: [9], r"verify: row 0: \[9\]; allowed: 1 to 3 integers"),
        (lambda d, t, x, k: d([0, 0]), "a prefix of 2 tokens; allowed: up to 2, of drafts one less"),
        (
            lambda d, t, x, k: Speculated([0], np.ones((2, 3)) / 3, np.ones((1, 3)) / 3),
            r"recorded \(2, 3\), drawn from",
        ),
    ],
)
def test_what_is_no_round_is_one_line(answer, message):
    with pytest.raises(ParityError, match=message):
        certify_speculation(answer, **SMALL)
    with pytest.raises(ParityError, match="shape 'tree': allowed: row, batch"):
        certify_speculation(answer, shape="tree", **SMALL)
