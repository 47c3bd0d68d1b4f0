"""Rows that depend on each other, each with the right distribution: found lossy on two seeds; independent rows keep
level."""

from collections import Counter

import numpy as np
import pytest

from parity_certify import certify_sampler, target_distribution
from parity_certify.calls import Batch
from parity_certify.distributions import compute_joint
from parity_certify.independence import has_dependent_rows, measure_dependence
from parity_certify.joint_tests import digits

V, L = 4, 3
QUIET = {"tell": lambda text: None, "draws": 199}
TABLES = np.random.default_rng(5).dirichlet(np.ones(V), size=(2, 21))
JOINTS = [compute_joint(table, L) for table in TABLES]


def compute_conditionals(prefixes):
    """Compute distributions [n, V] of the next token after prefixes [n, prompt and tokens], by prompt from a table."""
    tokens = prefixes[:, 1:]
    code = tokens @ V ** np.arange(tokens.shape[1])[::-1] if tokens.shape[1] else np.zeros(len(tokens), int)
    return TABLES[prefixes[:, 0], (V ** tokens.shape[1] - 1) // (V - 1) + code]


ONE = target_distribution(compute_conditionals, vocab=V, length=L, prompts=[[0]])
TWO = target_distribution(compute_conditionals, vocab=V, length=L, prompts=[[0], [1]])


def invert_joint(prompts, u):
    """Draw sequences [n, L] by inverting the joint distribution of each row's prompt at u [n], in [0, 1)."""
    which = np.array([np.searchsorted(JOINTS[p].cumsum(), x) for p, x in zip(prompts[:, 0], u, strict=True)])
    return digits(V, L)[which.clip(max=V**L - 1)]


def draw_independent(prompts, seed):
    """Draw independent sequences of the right distribution."""
    return invert_joint(prompts, np.random.default_rng(seed).random(len(prompts)))


def draw_antithetic(prompts, seed):
    """Draw sequences of the right distribution, but every second row from 1 - u of the row before: a fault."""
    u = np.random.default_rng(seed).random(len(prompts))
    u[1::2] = 1 - u[::2][: len(u[1::2])]
    return invert_joint(prompts, u)


def copy_rows(share, back):
    """Make a sampler that copies a share of its rows from the row `back` before with the same prompt: a fault."""

    def sample(prompts, seed):
        """Draw independent rows, then copy each with probability `share` from the row `back` before it."""
        rng = np.random.default_rng(seed)
        rows = draw_independent(prompts, seed + 1)
        for prompt in np.unique(prompts):
            same = np.flatnonzero(prompts[:, 0] == prompt)
            for k in range(back, len(same)):
                if rng.random() < share:
                    rows[same[k]] = rows[same[k - back]]
        return rows

    return sample


def share_noise(size):
    """Make a sampler of the right distribution whose rows `size` apart have the same random number: a fault."""

    def sample(prompts, seed):
        """Draw rows, of which row b uses random number b mod `size`."""
        u = np.random.default_rng(seed).random(size)
        return invert_joint(prompts, u[np.arange(len(prompts)) % size])

    return sample


FAULTS = {
    "antithetic pairs": (draw_antithetic, TWO),
    "one row in 8 a copy of one 8 back": (copy_rows(1 / 8, 8), ONE),
    "a tenth of a prompt's rows copies of two back": (copy_rows(0.1, 2), TWO),
    "noise shared 48 apart": (share_noise(48), TWO),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_depend_are_lossy(fault):
    sample, target = FAULTS[fault]
    certificate = certify_sampler(sample, target, margin=0.1, **QUIET)
    assert certificate.verdict.kind == "lossy" and certificate.verdict.dependent, str(certificate)
    assert "rows depend on each other" in str(certificate) and "apart" in certificate.verdict.where
    assert certificate.verdict.estimate is None and certificate.exit_code == 1
    assert "Give each row a generator of its own" in certificate.verdict.reason


def pick_likeliest(prompts):
    """Return the likeliest sequence of each prompt's distribution."""
    likeliest = np.array([JOINTS[0].argmax(), JOINTS[1].argmax()])
    return digits(V, L)[likeliest[prompts[:, 0]]]


def draw_greedy_after_others(prompts, seed):
    """Draw rightly after prompt 0, but the likeliest sequence after others: a fault."""
    first = prompts[:, :1] == 0
    return np.where(first, draw_independent(prompts, seed), pick_likeliest(prompts))


def draw_wrong_unless_100(prompts, seed):
    """Draw rightly if exactly 100 rows are asked for, else the likeliest sequences: a fault."""
    return draw_independent(prompts, seed) if len(prompts) == 100 else pick_likeliest(prompts)


class WrongAfter:
    """A sampler that is right until n rows are drawn, and then returns the likeliest sequences."""

    def __init__(self, n):
        self.n, self.drawn = n, 0

    def __call__(self, prompts, seed):
        """Draw rightly while no more than n rows were asked for in all, else return the likeliest sequences."""
        self.drawn += len(prompts)
        return draw_independent(prompts, seed) if self.drawn <= self.n else pick_likeliest(prompts)


KNOW_THE_TEST = {
    "greedy behind other prompts": (lambda: draw_greedy_after_others, {}),
    "wrong unless a call has 100 rows": (lambda: draw_wrong_unless_100, {}),
    "wrong after 20,000 rows": (lambda: WrongAfter(20_000), {"n": 21_000, "repeat": 2000}),
}


@pytest.mark.parametrize("fault", KNOW_THE_TEST)
def test_a_sampler_that_is_right_now_and_then_is_lossy(fault):
    make, sizes = KNOW_THE_TEST[fault]
    certificate = certify_sampler(make(), TWO, margin=0.1, **sizes, **QUIET)
    assert certificate.verdict.kind == "lossy" and certificate.exit_code == 1, str(certificate)


def test_a_wrong_distribution_is_not_taken_for_dependence():
    """Independent rows, nine in ten of one token alone: the evidence is as large when rows are shuffled."""
    for seed in (24, 39):
        prompts = np.zeros((3000, 1), dtype=int)
        rows = draw_independent(prompts, seed)
        rows[np.random.default_rng(seed).random(3000) < 0.9] = 0
        assert measure_dependence([Batch(prompts[:, 0], rows)], ONE).log_e > 100
        assert not has_dependent_rows([Batch(prompts[:, 0], rows)], ONE)
        copied = copy_rows(0.2, 2)(prompts, seed)
        assert has_dependent_rows([Batch(prompts[:, 0], copied)], ONE)


def test_60_correct_samplers_keep_the_level():
    """Of certifications of 18 cells at alpha .05, independence rejects at most 6 (99.9 % by the binomial at .025), all
    tests together at most 9; most are certified."""
    three = np.random.default_rng(1).dirichlet(np.ones(3), size=(2, 3))
    small = target_distribution(
        lambda prefixes: three[prefixes[:, 0], prefixes[:, -1]], vocab=3, length=2, prompts=[[0], [1]]
    )
    joints = small.joint.cumsum(-1)

    def sample(prompts, seed):
        """Draw sequences of the right distribution by inverting the prompt's joint distribution."""
        u = np.random.default_rng(seed).random(len(prompts))[:, None]
        return digits(3, 2)[(u >= joints[prompts[:, 0]]).sum(1).clip(max=8)]

    rejected, kinds = Counter(), Counter()
    for seed in range(60):
        certificate = certify_sampler(sample, small, margin=0.1, seeds=(seed, seed + 1000), **QUIET | {"draws": 499})
        kinds[certificate.verdict.kind] += 1
        rejected.update(
            r["test"] for r in certificate.rows if r["decides"] and not r["repeat"] and r["verdict"] == "rejected"
        )
    assert rejected["rows independent"] <= 6 and sum(rejected.values()) <= 9
    assert kinds["certified"] >= 52 and kinds["lossy"] <= 1
