"""The accept-or-resample core of the discrete decoders."""

import math

import pytest
import torch
from parity_certify.import_by_name import import_named_module
from parity_decoders.discrete.spec import accept_tokens
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import counted_noise
from parity_decoders.verification import accept_block, make_probs, residual, sample_token, verify
from scipy import stats

from parity.decode.discrete import record
from parity.models.discrete.tabular import TabularModel, random_table


def draw_probs(*rows):
    """Make distributions [1, W, V] of one row from the probabilities at each slot."""
    return torch.tensor(rows, dtype=torch.float64)[None]


ROWS = 4000
LEADING_ONES = 9  # a seed by which one of 16 x 65,536 words begins with 24 ones
ONES = torch.ones(1, 2, 3, dtype=torch.float64)
NO = torch.zeros(1, 2, dtype=torch.bool)


HALF = draw_probs([0.25, 0.75, 0.0], [0.0, 0.4, 0.6]), draw_probs([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
NOTHING = draw_probs([0.0, 0.0, 1.0], [0.1, 0.8, 0.1]), draw_probs([1.0, 0.0, 0.0], [0.1, 0.8, 0.1])


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


def compute_verified_probs(p, q, rest):
    """Compute in float64 the distribution [V] of a verified token whose draft is drawn from q and whose correction from
    the weights `rest`. p, q, rest [V]."""
    kept = (q.double() / q.double().sum()).minimum(p.double() / q.double().sum())
    return kept + (1 - kept.sum()) * (rest.double() / rest.double().sum())


def make_rounded_probs(vocab):
    """Make pairs of distributions [V] in float32 that differ in the last bits: random ones, flat ones, and two tokens
    of one half beside a tail of which one token is likelier in the first distribution."""
    random = 3 * torch.randn(vocab, generator=torch.Generator().manual_seed(0))
    changed = random * (1 + 2**-22 * torch.arange(vocab).remainder(3).sub(1))
    flat = torch.zeros(vocab)
    bent = 1e-6 * torch.randn(vocab, generator=torch.Generator().manual_seed(1))
    p = torch.full((vocab,), 1e-9 / vocab).index_fill(0, torch.tensor([0, vocab - 1]), 0.5)
    q = p.index_fill(0, torch.tensor(0), 0.5 + 2**-24).index_fill(0, torch.tensor(5), 0.0)
    return [*(tuple(map(make_probs, pair)) for pair in ((random, changed), (bent, flat), (flat, bent))), (p, q)]


def test_rounding_draws_no_token_by_the_residual():
    """Distributions whose float32 sums differ by up to 4e-6 reject drafts that often; the token is then p's, of any
    vocabulary. Must fail: the difference alone, which draws a token of 1e-14 in a tenth of a millionth of all draws."""
    wrong = []
    for p, q in make_rounded_probs(65_536):
        truth = p.double() / p.double().sum()
        probs, plain = (compute_verified_probs(p, q, rest) for rest in (residual(p, q), (p - q).clamp(min=0)))
        assert (probs - truth).abs().sum() / 2 < 1e-5
        assert (probs / truth).max() < 1.001
        wrong.append(float((plain / truth).max()))
    assert max(wrong) > 1e6
    # nothing is left of p, so it is p's likeliest
    assert sample_token(residual(p, p), torch.ones(1, 65_536)).tolist() == [0]


@pytest.mark.parametrize("accept", [accept_tokens, accept_block])
def test_drafts_are_accepted_by_their_ratio_in_float64(accept):
    """Float32 distributions over 65,536 tokens. Must fail: a ratio that is rounded to 24 bits."""
    p, q = make_rounded_probs(65_536)[0]
    drafts = q.topk(8).indices
    probs = p.expand(8, 2, -1), q.expand(8, 2, -1), drafts[:, None].expand(-1, 2), torch.tensor([[False, True]] * 8)
    ratio = (p.double() / q.double())[drafts].clamp(max=1)
    assert (ratio < 1).sum() > 1
    below, above = (accept(*probs, (ratio + step)[:, None].expand(-1, 2))[0][:, 0] for step in (-1e-12, 1e-12))
    assert below.all() and not above[ratio < 1].any()


@pytest.mark.parametrize("name", ["ar", "eagle", "lantern_pp", "pjd", "sjd", "spec", "zipar"])
def test_bfloat16_logits_of_a_raw_model_are_drawn_as_a_distribution_in_float32(name):
    """Each decoder takes its distribution in another place. Must fail: a softmax in bfloat16, whose probabilities have
    8 bits."""
    decoder = getattr(import_named_module(f"parity_decoders.discrete.{name}"), name)
    table, start = random_table(16, 3, torch.Generator().manual_seed(0)).bfloat16(), torch.zeros(ROWS).long()

    def decode(model):
        return record(model, start, decoder(model, start, noise=counted_noise(1, range(ROWS), torch.float32))).tokens

    tokens = decode(TabularModel(table, 3, ROWS, 2))
    assert torch.equal(tokens, decode(Sampled(TabularModel(table, 3, ROWS, 2), TokenSampling())))


@pytest.mark.parametrize("point", [False, True])
def test_a_tolerance_accepts_no_token_of_probability_zero(point):
    p, q = draw_probs([0.0, 0.1, 0.9], [0.1, 0.0, 0.9]), draw_probs([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    points, low = torch.full((1, 2), point), torch.zeros(1, 2, dtype=torch.float64)
    accepted = [
        int(verify(p, q, torch.tensor([draft]), points, low + 0.3, 10 * ONES / (1 + 99 * ONES.cumsum(-1)), 0.4).kept)
        for draft in ([1, 0], [0, 0])
    ]
    assert accepted == [2, 1]  # the first is accepted by the tolerance alone; the second is impossible


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [512, 16_384, 65_536, 151_936])
def test_draws_over_a_real_vocabulary_follow_the_distribution(vocab, dtype):
    """A certain token among others of 1e-12 together always wins; two equal tokens among others of 1e-9 win half
    each."""
    rows = 2**21 // vocab
    noise, zero = counted_noise(3, range(rows), torch.float32), torch.zeros(1, 1, dtype=torch.int64)
    e = noise.exponential("sample", zero, vocab)
    certain = torch.full((vocab,), -27.6 - math.log(vocab), dtype=dtype).index_fill(0, torch.tensor(vocab // 2), 0)
    assert (sample_token(certain.float().softmax(-1), e) == vocab // 2).all()
    equal = torch.full((vocab,), -20.7 - math.log(vocab), dtype=dtype).index_fill(0, torch.tensor([3, vocab - 1]), 0)
    wins = [int((sample_token(equal.float().softmax(-1), e) == k).sum()) for k in (3, vocab - 1)]
    assert sum(wins) == rows and stats.binomtest(wins[0], rows).pvalue > 1e-4


def test_a_word_of_leading_ones_does_not_win_for_a_token_of_no_probability():
    """Must fail: exponentials of its 24 leading bits, a uniform that rounds to 1."""
    noise = counted_noise(LEADING_ONES, range(16), torch.float32)
    e = noise.exponential("sample", torch.zeros(1, 1, dtype=torch.int64), 65_536)
    probs = torch.full((65_536,), 1e-17).index_fill(0, torch.tensor(7), 1)
    assert (sample_token(probs, e) == 7).all()
    uniform = ((-e.double()).exp() * 2**24).floor().float() + 0.5
    wrong = (uniform * 2.0**-24).log().neg().clamp(min=torch.finfo(torch.float32).tiny)
    assert (sample_token(probs, wrong) != 7).any()
