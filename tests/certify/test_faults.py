"""Predicted laws of faults: a correct loop has the target's law, each fault another, and the likeliest is named."""

import numpy as np
import pytest
from parity_certify import Law
from parity_certify import diagnosis as F
from parity_certify.laws import compute_joint

from parity.models.discrete.tabular import count_prefixes

V, L, BLOCK = 4, 4, 2
RNG = np.random.default_rng(0)
P, Q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in 1.2 * RNG.standard_normal((2, count_prefixes(V, L), V)))
LAW = Law("p", np.array([[0]]), P[None], L)
DRAFT = Law("q", np.array([[0]]), Q[None], L)
BARE = Law("bare", np.array([[0]]), F.apply_temperature(P, 2)[None], L)


def fix_law(suspect):
    """Return a suspect with its law computed once, here, so that asking again costs nothing."""
    law_once = suspect.law()
    return suspect._replace(law=lambda: law_once)


SUSPECTS = [fix_law(s) for s in F.list_suspects(LAW, DRAFT, BLOCK, bare=BARE)]


def compute_tv(a, b):
    return 0.5 * np.abs(a - b).sum()


@pytest.mark.parametrize("block", [1, 2, 5])
def test_without_a_fault_the_law_is_the_targets(block):
    """Whatever is drafted, also where nothing is offered. The simulated loop agrees, and a fault in it does not."""
    offered = np.random.default_rng(1).random(len(P)) < 0.6
    for mask in (None, offered):
        assert np.allclose(F.predict_joint(P, Q, block=block, offered=mask), compute_joint(P, L))
        drawn = F.simulate_joint(P, Q, block=block, fault="none", offered=mask, n=20_000)
        assert compute_tv(drawn, compute_joint(P, L)) < 0.06
    assert compute_tv(F.predict_joint(P, Q, block=block, correct=lambda p, q: p), compute_joint(P, L)) > 0.05
    assert compute_tv(F.predict_joint(P, Q, block=block, drawn=F.make_greedy(Q)), compute_joint(P, L)) > 0.1


@pytest.mark.parametrize("name", list(dict.fromkeys(s.name for s in SUSPECTS)))
def test_a_fault_is_named(name):
    """From 3,000 sequences of its law: the name fits, and is the first unless another is as likely."""
    law = next(s for s in SUSPECTS[::-1] if s.name == name).law()
    distance = compute_tv(law, LAW.joint)
    counts = np.random.default_rng(0).multinomial(3000 if distance > 0.05 else 100_000, law[0])
    diagnosis = F.diagnose_counts(
        counts, LAW, [s for s in SUSPECTS if s.name == name or not s.name.startswith("draft's law")]
    )
    assert name in [diagnosis["name"], *diagnosis["others"]], (distance, diagnosis["says"])
    assert diagnosis["log_likelihood_ratio"] > 0


def test_an_unknown_fault_is_none_of_the_named():
    """Tokens are exchanged in what is returned."""
    order = np.array([1, 2, 3, 0])
    law = LAW.joint.reshape([V] * L)[np.ix_(*[order] * L)].reshape(1, -1)
    counts = np.random.default_rng(0).multinomial(5000, law[0])
    diagnosis = F.diagnose_counts(counts, LAW, SUSPECTS)
    assert diagnosis["name"] is None
    assert diagnosis["says"].startswith("none of these")
    assert diagnosis["fits"] <= 1e-3
    assert F.diagnose_counts(counts, LAW, [])["name"] is None
