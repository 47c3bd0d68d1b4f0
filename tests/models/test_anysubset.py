"""Any-subset models: distributions do not depend on how they are computed; weights are read from files."""

import copy

import pytest
import torch
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.assd_quadratic import assd_quadratic
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.anysubset.sigma_gpt import sigma_gpt
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.anysubset import make_infilling

from parity.base.errors import ParityError
from parity.base.row_noise import batch_noise
from parity.decode.anysubset import record
from parity.embedded import stories
from parity.models import fetch
from parity.models.anysubset import causal, load
from parity.models.anysubset.causal import Causal, compute_log_probabilities
from parity.models.anysubset.vocabulary import Words
from parity.models.anysubset.xlnet import CachedXLNet, XLNet, xlnet

V, N, B = 40, 20, 5


@pytest.fixture(scope="module")
def net():
    """A small XLNet in float64 with random weights and distributions that are far from uniform."""
    torch.manual_seed(0)
    net = xlnet(V, 32, 2, 4).double().eval()
    for p in net.parameters():
        if p.ndim > 1:
            p.data.mul_(10)  # an untrained network is nearly uniform, so all its distributions would agree
    return net


@pytest.fixture(scope="module")
def start():
    """Five rows of 14 to 20 tokens, a fifth of them known."""
    g = torch.Generator().manual_seed(1)
    known_mask = torch.rand(B, N, generator=g) < 0.2
    known_mask[:, 3] = True
    tokens = torch.randint(1, V, (B, N), generator=g)
    return make_infilling(tokens, known_mask, 0, V, torch.tensor([20, 20, 17, 14, 20]))


def make_cached(net):
    return CachedXLNet(net.state_dict(), net.config.to_dict(), 0)


def decode(decoder, model, start, noise=None, **options):
    """Decode a batch, row b with the noise of number b unless `noise` is given."""
    noise = noise or counted_noise(0, range(len(start.tokens)))
    return record(model, start, decoder(model, start, noise=noise, **options))


class Comparison:
    """A model that asks two models, answers with the first and keeps their largest difference."""

    def __init__(self, one, two):
        self.one, self.two = one, two
        self.vocab, self.mask = one.vocab, one.mask
        self.largest = 0.0

    def probs(self, tokens, order, starts, ranks, known_ranks):
        """Return the first model's distributions, and note their largest difference from the second's at ranks inside
        rows."""
        p, q = (model.probs(tokens, order, starts, ranks, known_ranks) for model in (self.one, self.two))
        in_row = ranks < order.shape[1]
        difference = (p - q)[in_row].abs()
        assert difference.isfinite().all()
        self.largest = max(self.largest, difference.max().item() if len(difference) else 0.0)
        return p


@pytest.mark.parametrize(
    ("decoder", "options"),
    [(sequential, {}), (assd, {"k": 4}), (assd_quadratic, {"k": 3}), (sigma_gpt, {"orders": 2})],
)
def test_cached_distributions_equal_transformers(net, start, decoder, options):
    """Over whole decodings: ragged rows, rejected drafts, finished rows, orders that change."""
    model = Comparison(XLNet(net, 0), make_cached(net))
    decode(decoder, model, start, **options)
    assert model.largest < 1e-9


def test_a_cache_that_misses_a_change_is_noticed(net, start):
    class Stale(CachedXLNet):
        def probs(self, tokens, order, starts, ranks, known_ranks):
            """Compute distributions, but from cached keys and values of tokens that have changed: a fault."""
            if self.order.shape == order.shape:
                self.line = torch.where(self.line >= 0, tokens, self.line)  # takes changed tokens for cached
            return super().probs(tokens, order, starts, ranks, known_ranks)

    model = Comparison(XLNet(net, 0), Stale(net.state_dict(), net.config.to_dict(), 0))
    decode(assd, model, start, k=4)
    assert model.largest > 1e-3


def test_one_pass_gives_every_conditional(net, start):
    """Eq. 6: each distribution of the joint pass equals that of a separate pass, which sees nothing else."""
    words = torch.randint(1, V, start.tokens.shape, generator=torch.Generator().manual_seed(2))
    model = XLNet(net, 0)
    tokens = torch.where(start.tokens == 0, words, start.tokens)
    ranks = start.begin[:, None] + torch.arange(4)
    joint = model.probs(tokens, start.order, start.begin, ranks, ranks)
    for s in range(4):
        # Tokens by rank, those from the asked one on replaced by the mask.
        line = torch.where(torch.arange(N) < ranks[:, s : s + 1], tokens.gather(1, start.order), 0)
        prefix = torch.zeros_like(tokens).scatter_(1, start.order, line)
        one = model.probs(prefix, start.order, start.begin, ranks[:, s : s + 1], ranks[:, s : s + 1])
        torch.testing.assert_close(joint[:, s], one[:, 0], atol=1e-9, rtol=0)
    drafts = model.probs(tokens, start.order, start.begin, ranks, start.begin[:, None].expand_as(ranks))
    # Without the other drafts a model gives the joint pass's distribution of the first draft alone.
    torch.testing.assert_close(drafts[:, 0], joint[:, 0], atol=1e-9, rtol=0)
    assert (drafts[:, 1:] - joint[:, 1:]).abs().max() > 1e-2


def test_gpt2_is_asked_for_one_word_a_pass_after_known_ones():
    """A mask that the network lacks is not read and not drawn."""
    torch.manual_seed(0)
    net = causal.build({"vocab_size": V, "n_positions": N + 1, "n_embd": 32, "n_layer": 2, "n_head": 4})
    known_mask = torch.arange(N) < torch.tensor([3, 5, 2, 7, 1])[:, None]
    words = torch.randint(1, V, (B, N), generator=torch.Generator().manual_seed(4))
    prefix = make_infilling(words, known_mask, 0, V, torch.tensor([20, 20, 17, 14, 20]))
    ranks, several = torch.full((B, 1), 6), torch.tensor([[6, 9]]).repeat(B, 1)
    with pytest.raises(ValueError, match="allowed for a causal model: 1"):
        Causal(net, 0, 1, True).probs(words, prefix.order, prefix.begin, several, ranks.repeat(1, 2))
    scattered = prefix.order.clone()
    scattered[2] = scattered[2].flip(0)
    with pytest.raises(DecodingError, match="row 2: known tokens after hidden ones; allowed for a causal model"):
        Causal(net, 0, 1, False).probs(words, scattered, prefix.begin, ranks, ranks)
    masked = torch.where(known_mask, words, V)
    begin = prefix.begin[:, None]
    probs = Causal(net, V, 1, True).probs(masked, prefix.order, prefix.begin, begin, begin)
    assert probs.shape == (B, 1, V + 1)
    assert (probs[..., V] == 0).all()


def test_an_unknown_word_is_named():
    with pytest.raises(ParityError, match="word 'xyzzy' is not in the vocabulary"):
        Words(list(stories.list_words())).encode("the xyzzy")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifest")
    return load.load(fetch.make_manifest("anysubset", "xlnet", {"family": "xlnet"}, folder))


@pytest.mark.parametrize(("decoder", "k", "limit"), [(assd, 5, 0.9), (assd_quadratic, 3, 0.55)])
def test_embedded_models_load_and_drafts_save_passes(embedded, decoder, k, limit):
    """Passes a word, with 95 % of the words of held-out texts hidden; the judge finds the drawn texts likely."""
    words = embedded.words
    texts = [[words.number[w] for w in stories.draw_text(20_000_000 + i, True, 128)] for i in range(16)]
    known_mask = torch.rand(16, 128, generator=torch.Generator().manual_seed(0)) > 0.95
    known_mask[:, 64] = True
    start = make_infilling(torch.tensor(texts), known_mask, words.mask, words.vocab)
    decoded = decode(decoder, embedded.subset(True), start, batch_noise(2, [str(i) for i in range(16)]), k=k)
    assert embedded.one_vocabulary
    assert (decoded.nfe / (start.end - start.begin)).mean() <= limit
    noise = torch.randint(2, 384, (16, 128), generator=torch.Generator().manual_seed(0))
    logp, noise_logp = (compute_log_probabilities(embedded.gpt2, t, 0, 1).mean(1) for t in (decoded.tokens, noise))
    assert (-logp).exp().mean() < 30 < 300 < (-noise_logp).exp().mean()


def test_the_cache_refuses_another_attention():
    net = xlnet(8, width=16, layers=1, heads=2)
    config = net.config.to_dict()
    for key, value in {"attn_type": "uni", "clamp_len": 4}.items():
        with pytest.raises(ParityError, match=f"{key} = {value!r}"):
            CachedXLNet(net.state_dict(), config | {key: value}, mask=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("make", [lambda net: XLNet(net, 0), make_cached])
@pytest.mark.parametrize("decoder", [sequential, assd])
def test_distributions_that_are_no_numbers_end_the_job(net, start, make, decoder, value):
    spoilt = copy.deepcopy(net)
    with torch.no_grad():
        spoilt.transformer.layer[0].ff.layer_1.weight[0, 0] = value
    with pytest.raises(ParityError, match=r"the decoder drew token 0; .* of logits that are numbers"):
        decode(decoder, make(spoilt), start)
