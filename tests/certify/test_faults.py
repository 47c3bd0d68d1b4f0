"""Predicted laws of faults: a correct loop has the target's, each fault another, and the likeliest is named."""

import numpy as np
import pytest
from parity_certify import Law, certify_sampler
from parity_certify import faults as F
from parity_certify.diagnosis import diagnosis
from parity_certify.joint_tests import digits
from parity_certify.laws import joint_of

from parity.certify.decoded import Decoded, law_of
from parity.equality.faults.discrete import VARIANTS
from parity.equality.targets.discrete import Target
from parity.models.discrete.sampling import TokenSampling
from parity.models.discrete.tabular import nodes, random_table

V, L, BLOCK = 4, 4, 2
RNG = np.random.default_rng(0)
P, Q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in 1.2 * RNG.standard_normal((2, nodes(V, L), V)))
LAW = Law("p", np.array([[0]]), P[None], L)
DRAFT = Law("q", np.array([[0]]), Q[None], L)
BARE = Law("bare", np.array([[0]]), F.warmed(P, 2)[None], L)


def once(suspect):
    """The suspect with its law computed."""
    found = suspect.law()
    return suspect._replace(law=lambda: found)


SUSPECTS = [once(s) for s in F.suspects(LAW, DRAFT, BLOCK, bare=BARE)]


def tv(a, b):
    return 0.5 * np.abs(a - b).sum()


@pytest.mark.parametrize("block", [1, 2, 5])
def test_without_a_fault_the_law_is_the_targets(block):
    """Whatever is drafted, also where nothing is offered; the simulated loop agrees, and a fault in it does not."""
    offered = np.random.default_rng(1).random(len(P)) < 0.6
    for mask in (None, offered):
        assert np.allclose(F.predicted(P, Q, block=block, offered=mask), joint_of(P, L))
        drawn = F.simulated(P, Q, block=block, fault="none", offered=mask, n=20_000)
        assert tv(drawn, joint_of(P, L)) < 0.06
    assert tv(F.predicted(P, Q, block=block, correct=lambda p, q: p), joint_of(P, L)) > 0.05
    assert tv(F.predicted(P, Q, block=block, drawn=F.argmax(Q)), joint_of(P, L)) > 0.1


def test_the_law_of_a_loop_is_that_of_its_samples():
    """A fault that both can express: an acceptance that is always one."""
    drawn = F.simulated(P, Q, block=BLOCK, fault="nothing verified", n=50_000)
    assert tv(drawn, F.predicted(P, Q, block=BLOCK, surplus=1.0)) < 0.04
    assert tv(drawn, joint_of(P, L)) > 0.1


@pytest.mark.parametrize("name", list(dict.fromkeys(s.name for s in SUSPECTS)))
def test_a_fault_is_named(name):
    """From 3,000 sequences of its own law: the name is among those that fit, and the first unless another is alike."""
    own = next(s for s in SUSPECTS[::-1] if s.name == name).law()
    far = tv(own, LAW.joint)
    counts = np.random.default_rng(0).multinomial(3000 if far > 0.05 else 100_000, own[0])
    found = diagnosis(counts, LAW, [s for s in SUSPECTS if s.name == name or not s.name.startswith("draft's law")])
    assert name in [found["name"], *found["others"]], (far, found["says"])
    assert found["log_likelihood_ratio"] > 0


@pytest.mark.parametrize("name", list(dict.fromkeys(s.name for s in SUSPECTS)))
def test_a_named_fault_in_a_black_box_is_rejected(name):
    """Within 20,000 sequences, on two seeds; the smallest of its variants that moves the law by .02."""
    own = min(
        (s.law() for s in SUSPECTS if s.name == name), key=lambda law: (tv(law, LAW.joint) < 0.02, tv(law, LAW.joint))
    )

    def sample(prompts, seed):
        return digits(V, L)[np.random.default_rng(seed).choice(V**L, p=own[0], size=len(prompts))]

    found = certify_sampler(sample, LAW, n=20_000, batch=2000, margin=0.05, draws=499, tell=lambda text: None)
    assert found.exit_code == 1, (tv(own, LAW.joint), str(found))
    assert 0 < found.verdict.interval[0] <= tv(own, LAW.joint) <= found.verdict.interval[1]


def test_none_of_these_is_an_answer():
    """A law of no named fault: tokens exchanged in what is returned."""
    order = np.array([1, 2, 3, 0])
    other = LAW.joint.reshape([V] * L)[np.ix_(*[order] * L)].reshape(1, -1)
    counts = np.random.default_rng(0).multinomial(5000, other[0])
    found = diagnosis(counts, LAW, SUSPECTS)
    assert found["name"] is None and found["says"].startswith("none of these") and found["fits"] <= 1e-3
    assert diagnosis(counts, LAW, [])["name"] is None


TARGET = Target("top-k 3x5", random_table(3, 5, __import__("torch").Generator().manual_seed(0)), 5, 5,
                sampling=TokenSampling(top_k=2))  # fmt: skip


@pytest.mark.parametrize("name", list(VARIANTS))
def test_planted_faults_are_rejected_in_a_black_box(name):
    """The project's list, within 20,000 sequences, on a target that excludes tokens (the fewest cells, the most power);
    the correct loops are not."""
    decoder, fault = VARIANTS[name]
    n = 4000 if fault == "none" else 20_000
    black_box, settings = Decoded(decoder, TARGET), {"batch": 2000, "margin": 0.05, "draws": 999}
    found = certify_sampler(black_box, law_of(TARGET), n=n, name=name, tell=lambda text: None, **settings)
    assert found.exit_code == (0 if fault == "none" else 1), str(found)


def test_digits_of_the_table_are_its_prefixes():
    assert F.first_of(V, 2) == 1 + V and len(digits(V, 2)) == V**2
