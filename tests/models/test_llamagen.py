"""The LlamaGen module: published names and shapes, the cache against recomputation, drafters and draft models."""

import pytest
import torch
from parity_decoders.discrete.vvs import vvs
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.speculators import EagleDrafter, FeatureHeads

from parity.base.row_noise import batch_noise
from parity.embedded.tokenizer import PREFIX, encode_ids
from parity.models.discrete.llamagen import (
    Heads,
    LlamaGen,
    LlamaGenConfig,
    Transformer,
    make_rotary_table,
    make_speculator,
)
from parity.models.discrete.t5 import make_t5_encoder, pad_left
from parity.models.discrete.vq import VQ, VQConfig

SMALL = LlamaGenConfig(vocab=64, dim=32, layers=2, heads=2, grid=4, prefix=PREFIX, caption_dim=128, multiple_of=16)
CAPTIONS = [
    "a small red circle on a blue background",
    "two small striped pink squares on a cloudy white background",
    "a large black ring on a red background",
]
IDS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def net():
    """A small random image transformer in float64, whose distributions are far from uniform."""
    torch.manual_seed(0)
    net = Transformer(SMALL).double().eval()
    for p in net.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.3)
    return net


@pytest.fixture(scope="module")
def embedded_captions():
    """CAPTIONS embedded by a small random T5 [3, PREFIX, width], padded on the left, and which places are valid."""
    torch.manual_seed(1)
    ids, valid = encode_ids(CAPTIONS, PREFIX)
    with torch.no_grad():
        return pad_left(make_t5_encoder().eval()(input_ids=ids, attention_mask=valid).last_hidden_state.double(), valid)


def test_names_and_shapes_are_as_published():
    """Sizes of LlamaGen-XL and its tokenizer, built without memory."""
    with torch.device("meta"):
        state, vq = Transformer(LlamaGenConfig()).state_dict(), VQ(VQConfig()).state_dict()
    shapes = {k: list(v.shape) for k, v in state.items()}
    expected = {
        "cls_embedding.cap_proj.fc1.weight": [1280, 2048],
        "cls_embedding.uncond_embedding": [120, 2048],
        "layers.35.attention.wqkv.weight": [3840, 1280],
        "layers.0.feed_forward.w2.weight": [1280, 3584],
        "output.weight": [16384, 1280],
        "tok_embeddings.weight": [16384, 1280],
    }
    assert {k: shapes[k] for k in expected} == expected
    codes = {"quantize.embedding.weight": (16384, 8), "decoder.conv_blocks.0.upsample.conv.weight": (512, 512, 3, 3)}
    assert {k: tuple(vq[k].shape) for k in codes} == codes
    with torch.device("meta"):
        c2i = LlamaGenConfig(dim=768, layers=12, heads=12, prefix=1, caption_dim=0, classes=1000)
        assert list(Transformer(c2i).state_dict()["cls_embedding.embedding_table.weight"].shape) == [1001, 768]


@pytest.mark.parametrize(("dim", "heads"), [(1280, 20), (3200, 32)])
def test_the_rotary_table_is_the_authors_to_the_last_bit(dim, heads):
    """Their precompute_freqs_cis_2d, of the sizes of XL and 3B at 512 pixels."""
    half = dim // heads // 2
    freqs = 1.0 / (10000 ** (torch.arange(0, half, 2)[: half // 2].float() / half))
    freqs = torch.outer(torch.arange(32), freqs)
    grid = torch.cat([freqs[:, None].expand(-1, 32, -1), freqs[None].expand(32, -1, -1)], -1)
    table = torch.stack([grid.cos(), grid.sin()], -1).flatten(0, 1)
    ours = make_rotary_table(LlamaGenConfig(dim=dim, heads=heads, grid=32))
    assert torch.equal(ours[120:], table)
    assert (ours[:120] == 0).all()


def test_cached_decoding_equals_recomputation(net, embedded_captions):
    """Windows at different positions of each row, drafts that are rolled back and overwritten, rows of guidance."""
    embeddings, valid = embedded_captions
    g = torch.Generator().manual_seed(0)
    final = torch.randint(0, 64, (3, 16), generator=g)
    model = LlamaGen(net, embeddings, valid, guided=True)
    dropped = torch.tensor([False] * 3 + [True] * 3)
    with torch.inference_mode():
        conditions = torch.cat([embeddings] * 2), torch.cat([valid] * 2)
        full = net.output(net.features(*conditions, dropped, torch.cat([final] * 2)))
    starts, guess = torch.tensor([0, 0, 0]), torch.Generator().manual_seed(1)
    for advance in ([3, 1, 2], [1, 4, 1], [5, 1, 2], [2, 2, 6]):
        indices = starts[:, None] + torch.arange(6)
        drafts = torch.randint(0, 64, (3, 6), generator=guess)
        line = torch.cat([torch.zeros(3, 1, dtype=torch.int64), final, torch.zeros(3, 9, dtype=torch.int64)], 1)
        tokens = torch.where(torch.arange(6) < torch.tensor(advance)[:, None], line.gather(1, indices), drafts)
        positions = (indices - 1).clamp(max=15)
        logits = model.logits(tokens.repeat(2, 1), positions.repeat(2, 1))
        for b in range(6):
            n = advance[b % 3]
            assert torch.allclose(logits[b, :n], full[b, starts[b % 3] : starts[b % 3] + n], atol=1e-10)
        starts = starts + torch.tensor(advance)


def test_padding_of_a_caption_is_masked(net, embedded_captions):
    embeddings, valid = embedded_captions
    noisy = torch.where(valid[..., None].bool(), embeddings, torch.full_like(embeddings, 9.0))
    start, positions = torch.zeros(3, 1, dtype=torch.int64), torch.full((3, 1), -1)
    a, b = (LlamaGen(net, e, valid, False).logits(start, positions) for e in (embeddings, noisy))
    assert torch.allclose(a, b, atol=1e-12)


@pytest.fixture(scope="module")
def drafter():
    torch.manual_seed(2)
    return make_speculator("drafter", SMALL).double().eval()


def make_drafted_model(net, drafter, embeddings, valid, guided):
    """Make a LlamaGen of embedded captions, with a codebook and a drafter that reads its features."""
    model = LlamaGen(net, embeddings, valid, guided)
    return model, {"drafter": EagleDrafter(drafter, model)}


@pytest.mark.parametrize("options", [{"interval": 2}, {"replace": 1.0}])
def test_post_verification_restores_the_exact_cache(net, drafter, embedded_captions, options):
    """After every pass of vvs, keys, values and features equal those of a fresh prefill of the same tokens."""
    embeddings, valid = embedded_captions
    L = 16
    model, speculators = make_drafted_model(net, drafter, embeddings, valid, True)
    sampled = Sampled(model, TokenSampling(guidance=2.0), speculators)
    noise = batch_noise(0, IDS, dtype=torch.float64)
    line = torch.zeros(3, L + 12, dtype=torch.int64)
    skipped = 0
    options = options | {"k": 8, "delta": 0.5, "total": 12, "depth": 3, "top_k": 3}
    for step in vvs(sampled, torch.zeros(3, dtype=torch.int64), noise=noise, **options):
        ends = step.positions + step.kept
        indices = (step.positions[:, None] + torch.arange(step.tokens.shape[1])).clamp(max=L + 11)
        line.scatter_(1, indices, torch.where(indices < ends[:, None], step.tokens, line.gather(1, indices)))
        skipped += int((step.kept > 4).sum())
        n_tokens = int(ends.min())  # the fewest tokens that a row has; all but its last were fed
        fresh, others = make_drafted_model(net, drafter, embeddings, valid, True)
        reader = others["drafter"]
        nodes = torch.arange(n_tokens).expand(6, -1)
        tokens = torch.cat([line[:, :1], line[:, : n_tokens - 1]], 1).repeat(2, 1)
        read = fresh.tree(tokens, nodes - 1, nodes - 1)
        fresh.keep(read, nodes)
        reader.keep(read, nodes)
        end = SMALL.prefix + n_tokens - 1
        with torch.inference_mode():
            left = model.active.index  # rows that are not done
            for mine, theirs in zip(model.cache.layers, fresh.cache.layers, strict=True):
                assert torch.allclose(mine.keys[:, :end], theirs.keys[left, :end], atol=1e-9)
                assert torch.allclose(mine.values[:, :end], theirs.values[left, :end], atol=1e-9)
            features = speculators["drafter"].features
            assert torch.allclose(features[left, :n_tokens], reader.features[left, :n_tokens], atol=1e-9)
    assert skipped > 0


@torch.inference_mode()
def test_heads_continue_the_features_of_the_whole_sequence(net, embedded_captions):
    """After a tree of the target, after what was kept of it, in the row below that, and after their own feature."""
    torch.manual_seed(3)
    heads = Heads(SMALL).double().eval()
    embeddings, valid = (torch.cat([x, x]) for x in embedded_captions)
    model = LlamaGen(net, *embedded_captions, True)
    stored = FeatureHeads(heads, model)
    tokens = torch.randint(SMALL.vocab, (6, 16))
    features = net.features(embeddings, valid, torch.arange(6) >= 3, tokens[:, :-1])  # number s predicts token s
    n = 8  # this many nodes has a chain that begins at position -1

    def continue_right(features, tokens):
        return heads.right(features, net.tok_embeddings(tokens))

    def check(logits, features):
        torch.testing.assert_close(logits, net.output(features), rtol=1e-9, atol=1e-9)

    nodes = torch.arange(n).expand(6, -1)
    chain = torch.cat([tokens[:, :1], tokens[:, : n - 1]], 1), nodes - 1, nodes - 1
    evaluated = model.tree(*chain)
    expected = continue_right(features[:, : n - 1], tokens[:, : n - 1])
    check(stored.continue_tree(evaluated)[:, 1:], expected)
    model.keep(evaluated, nodes)
    stored.keep(evaluated, nodes)
    check(stored.logits(tokens[:, : n - 1], nodes[:, : n - 1]), expected)
    below = heads.below(features[:, n - 3 : n])  # the features after tokens n - 4 to n - 2, of a row of four
    row_below = torch.arange(n, n + 3).expand(6, -1)
    check(stored.logits(tokens[:, n : n + 3], row_below), continue_right(below, tokens[:, n : n + 3]))
    branch = tokens[:, n - 2 : n], row_below[:, :2] - 2, torch.tensor([[-1, 0]]).expand(6, -1)
    after = continue_right(expected[:, -1:], tokens[:, n - 1 : n])
    check(stored.tree(*(x[:, :1] for x in branch)), expected[:, -1:])
    check(stored.tree(*branch), torch.cat([expected[:, -1:], after], 1))
