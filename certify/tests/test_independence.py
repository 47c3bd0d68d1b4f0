"""Rows that depend on each other, each with the right law: found lossy on two seeds; independent rows keep level."""

import numpy as np
import pytest

from parity_certify import certify_sampler, law
from parity_certify.counts import digits
from parity_certify.independence import rows_independent
from parity_certify.laws import joint_of
from parity_certify.store import Batch

V, L = 4, 3
QUIET = {"tell": lambda text: None, "draws": 199}
TABLES = np.random.default_rng(5).dirichlet(np.ones(V), size=(2, 21))
JOINTS = [joint_of(table, L) for table in TABLES]


def conditional(prefixes):
    tokens = prefixes[:, 1:]
    code = tokens @ V ** np.arange(tokens.shape[1])[::-1] if tokens.shape[1] else np.zeros(len(tokens), int)
    return TABLES[prefixes[:, 0], (V ** tokens.shape[1] - 1) // (V - 1) + code]


ONE = law(conditional, vocab=V, length=L, prompts=[[0]])
TWO = law(conditional, vocab=V, length=L, prompts=[[0], [1]])


def by_uniforms(prompts, u):
    """Sequences by the inverse of each prompt's joint at u [n]."""
    which = np.array([np.searchsorted(JOINTS[p].cumsum(), x) for p, x in zip(prompts[:, 0], u, strict=True)])
    return digits(V, L)[which.clip(max=V**L - 1)]


def independent(prompts, seed):
    return by_uniforms(prompts, np.random.default_rng(seed).random(len(prompts)))


def antithetic(prompts, seed):
    u = np.random.default_rng(seed).random(len(prompts))
    u[1::2] = 1 - u[::2][: len(u[1::2])]
    return by_uniforms(prompts, u)


def copies(share, back):
    """A share of the rows is a copy of the row so far back, among the rows with the same prompt."""

    def sample(prompts, seed):
        rng = np.random.default_rng(seed)
        rows = independent(prompts, seed + 1)
        for prompt in np.unique(prompts):
            at = np.flatnonzero(prompts[:, 0] == prompt)
            for k in range(back, len(at)):
                if rng.random() < share:
                    rows[at[k]] = rows[at[k - back]]
        return rows

    return sample


def shared_noise(prompts, seed):
    """Rows 32 apart share their noise."""
    u = np.random.default_rng(seed).random(32)
    return by_uniforms(prompts, u[np.arange(len(prompts)) % 32])


FAULTS = {
    "antithetic pairs": (antithetic, TWO),
    "one row in 8 a copy of one 8 back": (copies(1 / 8, 8), ONE),
    "a tenth of rows copies of two back": (copies(0.1, 2), ONE),
    "a tenth of a prompt's rows copies of two back": (copies(0.1, 2), TWO),
    "noise shared 32 apart": (shared_noise, TWO),
}


@pytest.mark.parametrize("seed", [0, 10])
@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_depend_are_lossy(fault, seed):
    sample, target = FAULTS[fault]
    found = certify_sampler(sample, target, margin=0.1, seeds=(seed, seed + 1), **QUIET)
    assert found.verdict.kind == "lossy" and found.verdict.dependent, str(found)
    assert "rows depend on each other" in str(found) and "apart" in found.verdict.where
    assert found.verdict.estimate is None and found.exit_code == 1


def test_independent_rows_keep_the_level():
    """An e-value: 200 runs, none of which should come near 1 / alpha; and it is not always 0."""
    logs = []
    for seed in range(200):
        prompts = np.random.default_rng(seed).integers(2, size=400)
        rows = independent(prompts[:, None], seed)
        logs.append(rows_independent([Batch(prompts, rows)], TWO).log_e)
    logs = np.array(logs)
    assert (logs >= np.log(1 / 0.05)).sum() <= 10 and np.exp(logs).mean() < 2 and logs.max() > -5


def test_the_share_that_is_found_is_said():
    """Copies at the stated share are found in most runs of 4,000 rows; a fifth of the share in few."""
    n, hits = 4000, {1.0: 0, 0.2: 0}
    prompts = np.zeros((n, 1), dtype=int)
    for seed in range(10):
        for part in hits:
            least = rows_independent([Batch(prompts[:, 0], independent(prompts, seed))], ONE).least
            rows = copies(part * least, 3)(prompts, seed)
            hits[part] += rows_independent([Batch(prompts[:, 0], rows)], ONE).log_e > np.log(4 / 0.05)
    assert hits[1.0] >= 7 and hits[0.2] <= 3


@pytest.mark.parametrize(
    "wrong", [lambda n: n != 50, lambda n: n == 1, lambda n: n < 8], ids=["unless 50", "alone", "few"]
)
def test_a_sampler_that_is_right_in_calls_of_one_size_is_found(wrong):
    """Calls are of several sizes; with one size alone it passes, and the certificate says what was not tested."""

    def sample(prompts, seed):
        rows = independent(prompts, seed)
        return np.zeros_like(rows) if wrong(len(prompts)) else rows

    settings = {"margin": 0.01, "n": 40_000, "batch": 50} | QUIET
    found = certify_sampler(sample, ONE, **settings)
    assert found.verdict.kind == "lossy", str(found)
    same = certify_sampler(sample, ONE, vary=False, **settings | {"n": 4000, "margin": 0.1})
    assert same.verdict.kind == "certified" and "other sizes of a call" in same.verdict.untested
    assert "not tested: other prompts" in str(same)
