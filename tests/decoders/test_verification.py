"""The accept-or-resample core of the discrete decoders, one property each."""

import pytest
import torch
from parity_decoders.noise import counted_noise
from parity_decoders.verification import race, residual, verify
from scipy import stats


def laws(*rows):
    return torch.tensor(rows, dtype=torch.float64)[None]


ONES = torch.ones(1, 2, 3, dtype=torch.float64)
NO = torch.zeros(1, 2, dtype=torch.bool)


HALF = laws([0.25, 0.75, 0.0], [0.0, 0.4, 0.6]), laws([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
NOTHING = laws([0.0, 0.0, 1.0], [0.1, 0.8, 0.1]), laws([1.0, 0.0, 0.0], [0.1, 0.8, 0.1])


@pytest.mark.parametrize(
    ("p", "q", "draft", "u", "tokens", "kept"),
    [
        (HALF[0], HALF[0], [1, 2], [0.999, 0.999], [1, 2], 2),  # p = q: everything is accepted
        (*NOTHING, [0, 0], [0.0, 0.0], [2, 1], 1),  # impossible under p: rejected even at u = 0; the rest is fresh
        (*HALF, [0, 0], [0.499, 0.5], [0, 2], 2),  # a ratio of 0.5: u just below accepts, the second is rejected
        (*HALF, [0, 0], [0.5, 0.5], [1, 2], 1),  # u at the ratio rejects; the residual is token 1 alone
    ],
)
def test_accept_reject_table(p, q, draft, u, tokens, kept):
    out = verify(p, q, torch.tensor([draft]), NO, torch.tensor([u], dtype=torch.float64), ONES)
    assert out.tokens.tolist() == [tokens]
    assert out.kept.tolist() == [kept]


def test_zero_residual_falls_back_to_the_target():
    """p = q leaves no residual; rounding can still reject, and the correction must then be a token that p allows."""
    p = laws([0.0, 0.4, 0.6])
    assert torch.equal(residual(p, p), p)
    assert race(residual(p, p), ONES[:, :1]).item() == 2


@pytest.mark.parametrize("point", [False, True])
def test_verified_token_follows_p_and_a_stored_old_law_does_not(point):
    """The law of the kept token is p. Must fail: correcting from p instead of the residual."""
    n, (p, q) = 100_000, torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]], dtype=torch.float64)
    noise, zero = counted_noise(7, range(n)), torch.zeros(1, 1, dtype=torch.int64)
    draft = race(q, noise.exponential("draft", zero, 3))
    P, Q = p.expand(n, 1, 3), q.expand(n, 1, 3)
    u, e = noise.uniform("accept", zero), noise.exponential("sample", zero, 3)
    out = verify(P, Q, draft, torch.full((n, 1), point), u, e)
    assert stats.chisquare(torch.bincount(out.tokens[:, 0], minlength=3), n * p).pvalue > 1e-4
    if not point:
        wrong = torch.where(
            u * Q.gather(-1, draft[..., None])[..., 0] < P.gather(-1, draft[..., None])[..., 0], draft, race(P, e)
        )
        assert stats.chisquare(torch.bincount(wrong[:, 0], minlength=3), n * p).pvalue < 1e-12


@pytest.mark.parametrize("point", [False, True])
def test_a_tolerance_accepts_too_much_but_nothing_of_probability_zero(point):
    p, q = laws([0.0, 0.1, 0.9], [0.1, 0.0, 0.9]), laws([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    points, low = torch.full((1, 2), point), torch.zeros(1, 2, dtype=torch.float64)
    accepted = [
        int(verify(p, q, torch.tensor([draft]), points, low + 0.3, 10 * ONES / (1 + 99 * ONES.cumsum(-1)), 0.4).kept)
        for draft in ([1, 0], [0, 0])
    ]
    assert accepted == [2, 1]  # likely enough with the tolerance alone; ruled out
