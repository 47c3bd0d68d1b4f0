"""The accept-or-resample core of the discrete decoders."""

import math

import pytest
import torch
from parity_decoders.noise import counted_noise
from parity_decoders.verification import race, residual, verify
from scipy import stats


def make_laws(*rows):
    """Make laws [1, W, V] of one row from the probabilities at each slot."""
    return torch.tensor(rows, dtype=torch.float64)[None]


LEADING_ONES = 9  # a seed by which one of 16 x 65,536 words begins with 24 ones
ONES = torch.ones(1, 2, 3, dtype=torch.float64)
NO = torch.zeros(1, 2, dtype=torch.bool)


HALF = make_laws([0.25, 0.75, 0.0], [0.0, 0.4, 0.6]), make_laws([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
NOTHING = make_laws([0.0, 0.0, 1.0], [0.1, 0.8, 0.1]), make_laws([1.0, 0.0, 0.0], [0.1, 0.8, 0.1])


@pytest.mark.parametrize(
    ("p", "q", "draft", "u", "tokens", "n_kept"),
    [
        (HALF[0], HALF[0], [1, 2], [0.999, 0.999], [1, 2], 2),  # p = q: everything is accepted
        (*NOTHING, [0, 0], [0.0, 0.0], [2, 1], 1),  # impossible under p: rejected even at u = 0; the rest is fresh
        (*HALF, [0, 0], [0.499, 0.5], [0, 2], 2),  # a ratio of 0.5: u just below accepts, the second is rejected
        (*HALF, [0, 0], [0.5, 0.5], [1, 2], 1),  # u at the ratio rejects; the residual is token 1 alone
    ],
)
def test_drafts_are_accepted_by_their_ratio(p, q, draft, u, tokens, n_kept):
    out = verify(p, q, torch.tensor([draft]), NO, torch.tensor([u], dtype=torch.float64), ONES)
    assert out.tokens.tolist() == [tokens]
    assert out.kept.tolist() == [n_kept]


def test_zero_residual_falls_back_to_the_target():
    """p = q leaves no residual; rounding can still reject, and the correction must then be a token that p allows."""
    p = make_laws([0.0, 0.4, 0.6])
    assert torch.equal(residual(p, p), p)
    assert race(residual(p, p), ONES[:, :1]).item() == 2


@pytest.mark.parametrize("point", [False, True])
def test_a_verified_token_follows_p(point):
    """Must fail: a correction drawn from p instead of the residual."""
    n, (p, q) = 100_000, torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]], dtype=torch.float64)
    noise, zero = counted_noise(7, range(n)), torch.zeros(1, 1, dtype=torch.int64)
    draft = race(q, noise.exponential("draft", zero, 3))
    P, Q = p.expand(n, 1, 3), q.expand(n, 1, 3)
    u, e = noise.uniform("accept", zero), noise.exponential("sample", zero, 3)
    out = verify(P, Q, draft, torch.full((n, 1), point), u, e)
    assert stats.chisquare(torch.bincount(out.tokens[:, 0], minlength=3), n * p).pvalue > 1e-4
    if not point:
        draft_p, draft_q = (law.gather(-1, draft[..., None])[..., 0] for law in (P, Q))
        wrong = torch.where(u * draft_q < draft_p, draft, race(P, e))
        assert stats.chisquare(torch.bincount(wrong[:, 0], minlength=3), n * p).pvalue < 1e-12


@pytest.mark.parametrize("point", [False, True])
def test_a_tolerance_accepts_no_token_of_probability_zero(point):
    p, q = make_laws([0.0, 0.1, 0.9], [0.1, 0.0, 0.9]), make_laws([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    points, low = torch.full((1, 2), point), torch.zeros(1, 2, dtype=torch.float64)
    accepted = [
        int(verify(p, q, torch.tensor([draft]), points, low + 0.3, 10 * ONES / (1 + 99 * ONES.cumsum(-1)), 0.4).kept)
        for draft in ([1, 0], [0, 0])
    ]
    assert accepted == [2, 1]  # the first is accepted by the tolerance alone; the second is impossible


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [512, 16_384, 65_536, 151_936])
def test_races_over_a_real_vocabulary_follow_the_law(vocab, dtype):
    """A certain token among others of 1e-12 together always wins; two equal tokens among others of 1e-9 win half
    each."""
    rows = 2**21 // vocab
    noise, zero = counted_noise(3, range(rows), torch.float32), torch.zeros(1, 1, dtype=torch.int64)
    e = noise.exponential("sample", zero, vocab)
    certain = torch.full((vocab,), -27.6 - math.log(vocab), dtype=dtype).index_fill(0, torch.tensor(vocab // 2), 0)
    assert (race(certain.float().softmax(-1), e) == vocab // 2).all()
    equal = torch.full((vocab,), -20.7 - math.log(vocab), dtype=dtype).index_fill(0, torch.tensor([3, vocab - 1]), 0)
    wins = [int((race(equal.float().softmax(-1), e) == k).sum()) for k in (3, vocab - 1)]
    assert sum(wins) == rows and stats.binomtest(wins[0], rows).pvalue > 1e-4


def test_a_word_of_leading_ones_does_not_win_for_a_token_of_no_probability():
    """Must fail: exponentials of its 24 leading bits, a uniform that rounds to 1."""
    noise = counted_noise(LEADING_ONES, range(16), torch.float32)
    e = noise.exponential("sample", torch.zeros(1, 1, dtype=torch.int64), 65_536)
    law = torch.full((65_536,), 1e-17).index_fill(0, torch.tensor(7), 1)
    assert (race(law, e) == 7).all()
    uniform = ((-e.double()).exp() * 2**24).floor().float() + 0.5
    wrong = (uniform * 2.0**-24).log().neg().clamp(min=torch.finfo(torch.float32).tiny)
    assert (race(law, wrong) != 7).any()


def test_a_uniform_law_is_drawn_uniformly():
    """Over 65,536 tokens of equal weight: none is drawn for its number."""
    noise, zero = counted_noise(4, range(1000), torch.float32), torch.zeros(1, 1, dtype=torch.int64)
    tokens = race(torch.ones(65_536), noise.exponential("sample", zero, 65_536))
    assert stats.kstest(tokens[:, 0] + 0.5, "uniform", (0, 65_536)).pvalue > 1e-4
