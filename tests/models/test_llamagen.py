"""The LlamaGen module: published names and shapes, the cache against plain recomputation, its quirks."""

from dataclasses import asdict

import pytest
import torch
from parity_decoders.discrete.spec import spec
from parity_decoders.discrete.vvs import vvs
from parity_decoders.sampling import Sampled, TokenSampling

from parity.base.row_noise import batch_noise
from parity.decode.discrete import record
from parity.embedded.tokenizer import PREFIX, encode_ids
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llamagen import FeatureDrafter, LlamaGen, LlamaGenConfig, Transformer
from parity.models.discrete.t5 import make_t5_encoder, pad_left
from parity.models.discrete.vq import VQ, VQConfig

SMALL = LlamaGenConfig(vocab=64, dim=32, layers=2, heads=2, grid=4, prefix=PREFIX, caption_dim=128, multiple_of=16)
CAPTIONS = [
    "a small red circle on a blue background",
    "two small striped pink squares on a cloudy white background",
    "a large black ring on a red background",
]
IDS = ["a", "b", "c"]


def decoded(decoder, model, rows=(0, 1, 2), **options):
    """Decode these rows of a batch, each with its own noise."""
    start, noise = (
        torch.zeros(len(rows), dtype=torch.int64),
        batch_noise(0, [IDS[r] for r in rows], dtype=torch.float64),
    )
    return record(model, start, decoder(model, start, noise=noise, **options))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = Transformer(SMALL).double().eval()
    for p in net.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.3)
    return net


@pytest.fixture(scope="module")
def condition():
    torch.manual_seed(1)
    ids, valid = encode_ids(CAPTIONS, PREFIX)
    with torch.no_grad():
        return pad_left(make_t5_encoder().eval()(input_ids=ids, attention_mask=valid).last_hidden_state.double(), valid)


def test_names_and_shapes_are_the_published_ones():
    """Sizes of LlamaGen-XL and of its tokenizer as in the published files; built without memory."""
    with torch.device("meta"):
        state, vq = Transformer(LlamaGenConfig()).state_dict(), VQ(VQConfig()).state_dict()
    shapes = {k: list(v.shape) for k, v in state.items()}
    wanted = {
        "cls_embedding.cap_proj.fc1.weight": [1280, 2048],
        "cls_embedding.uncond_embedding": [120, 2048],
        "layers.35.attention.wqkv.weight": [3840, 1280],
        "layers.0.feed_forward.w2.weight": [1280, 3584],
        "output.weight": [16384, 1280],
        "tok_embeddings.weight": [16384, 1280],
    }
    assert {k: shapes[k] for k in wanted} == wanted
    assert len(shapes) == 3 + 1 + 36 * 7 + 2
    assert sum(v.numel() for v in state.values()) == pytest.approx(775e6, rel=0.05)
    codes = {"quantize.embedding.weight": (16384, 8), "decoder.conv_blocks.0.upsample.conv.weight": (512, 512, 3, 3)}
    assert {k: tuple(vq[k].shape) for k in codes} == codes
    with torch.device("meta"):
        c2i = LlamaGenConfig(dim=768, layers=12, heads=12, prefix=1, caption_dim=0, classes=1000)
        assert list(Transformer(c2i).state_dict()["cls_embedding.embedding_table.weight"].shape) == [1001, 768]


def test_cached_decoding_equals_recomputation(net, condition):
    """Windows at different positions per row, drafts rolled back and overwritten, guidance rows: logits equal the full
    forward's."""
    embeddings, valid = condition
    g = torch.Generator().manual_seed(0)
    final = torch.randint(0, 64, (3, 16), generator=g)
    model = LlamaGen(net, embeddings, valid, guided=True)
    dropped = torch.tensor([False] * 3 + [True] * 3)
    with torch.inference_mode():
        whole = net(torch.cat([embeddings] * 2), torch.cat([valid] * 2), dropped, torch.cat([final] * 2))
    at, guess = torch.tensor([0, 0, 0]), torch.Generator().manual_seed(1)
    for advance in ([3, 1, 2], [1, 4, 1], [5, 1, 2], [2, 2, 6]):
        where = at[:, None] + torch.arange(6)
        drafts = torch.randint(0, 64, (3, 6), generator=guess)
        before = torch.cat([torch.zeros(3, 1, dtype=torch.int64), final, torch.zeros(3, 9, dtype=torch.int64)], 1)
        tokens = torch.where(torch.arange(6) < torch.tensor(advance)[:, None], before.gather(1, where), drafts)
        positions = (where - 1).clamp(max=15)
        logits = model.logits(tokens.repeat(2, 1), positions.repeat(2, 1))
        for b in range(6):
            n = advance[b % 3]
            assert torch.allclose(logits[b, :n], whole[b, at[b % 3] : at[b % 3] + n], atol=1e-10)
        at = at + torch.tensor(advance)


def test_rows_that_are_done_leave_and_the_others_stay_what_they_were(net, condition):
    """Rows that end at different passes: the laws of those that go on are the same, to rounding, as of a model that
    keeps them all."""
    L, rows = 16, len(CAPTIONS)
    tokens = torch.randint(64, (rows, L), generator=torch.Generator().manual_seed(5))
    line = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), tokens], 1)
    pace = torch.tensor([4, 1, 2])[:rows, None]  # the first row is done first, then the last
    alone = [LlamaGen(net, *(x[b : b + 1] for x in condition), guided=False) for b in range(rows)]
    model = LlamaGen(net, *condition, guided=False)
    for step in range(L):
        at = (step * pace + torch.arange(4) - 1).clamp(max=L - 1)
        laws, left = model.logits(line.gather(1, at + 1), at), (at < L - 1).any(1)
        assert model.going.sort().values.tolist() == left.nonzero()[:, 0].tolist()
        for b in left.nonzero()[:, 0].tolist():
            own = alone[b].logits(line[b : b + 1].gather(1, at[b : b + 1] + 1), at[b : b + 1])[0]
            assert torch.allclose(laws[b], own, atol=1e-9)
        assert (laws[~left] == 0).all()
    with pytest.raises(ValueError, match="was done in an earlier pass"):
        model.logits(line[:, :1], torch.full((rows, 1), -1))


def test_padding_of_a_caption_changes_nothing_but_what_is_masked(net, condition):
    embeddings, valid = condition
    noisy = torch.where(valid[..., None].bool(), embeddings, torch.full_like(embeddings, 9.0))
    start, at = torch.zeros(3, 1, dtype=torch.int64), torch.full((3, 1), -1)
    a, b = (LlamaGen(net, e, valid, False).logits(start, at) for e in (embeddings, noisy))
    assert torch.allclose(a, b, atol=1e-12)


@pytest.fixture(scope="module")
def drafter():
    torch.manual_seed(2)
    return FeatureDrafter(SMALL).double().eval()


def with_drafter(net, drafter, embeddings, valid, guided):
    model = LlamaGen(net, embeddings, valid, guided)
    model.codebook = torch.nn.functional.normalize(net.tok_embeddings.weight.detach(), dim=-1)
    model.drafter = EagleDrafter(drafter, model)
    return model


@pytest.mark.parametrize("options", [{"interval": 2}, {"replace": 1.0}])
def test_post_verification_restores_the_exact_cache(net, drafter, condition, options):
    """After every pass of vvs, tokens taken unverified included, keys, values and features are those of a fresh prefill
    of the same tokens."""
    embeddings, valid = condition
    model, L = with_drafter(net, drafter, embeddings, valid, True), 16
    sampled = Sampled(model, TokenSampling(guidance=2.0))
    noise = batch_noise(0, IDS, dtype=torch.float64)
    line, skipped = torch.zeros(3, L + 12, dtype=torch.int64), 0
    for step in vvs(
        sampled, torch.zeros(3, dtype=torch.int64), noise=noise, k=8, delta=0.5, total=12, depth=3, top_k=3, **options
    ):
        at = step.positions + step.kept
        where = step.positions[:, None] + torch.arange(step.tokens.shape[1])
        where = where.clamp(max=L + 11)
        line.scatter_(1, where, torch.where(where < at[:, None], step.tokens, line.gather(1, where)))
        skipped += int((step.kept > 4).sum())
        known = int(at.min())  # tokens before here are fed, but for the last one
        fresh = with_drafter(net, drafter, embeddings, valid, True)
        tokens = torch.cat([line[:, :1], line[:, : known - 1]], 1)
        fresh.logits(tokens.repeat(2, 1), torch.arange(-1, known - 1).expand(6, -1))
        end = SMALL.prefix + known - 1
        with torch.inference_mode():
            for held, truth in zip(model.cache, fresh.cache, strict=True):
                for mine, theirs in zip(held, truth, strict=True):  # keys, values, of the rows that are not done
                    assert torch.allclose(mine[:, :end], theirs[model.going, :end], atol=1e-9)
        assert torch.allclose(model.features[:, :known], fresh.features[:, :known], atol=1e-9)
    assert skipped > 0


def spoil(model, slots):
    """Other keys and values in slots of the cache."""
    for keys, values in model.cache:
        keys[:, slots], values[:, slots] = 7.0, -7.0


def test_holes_are_masked(net, condition):
    """What stands where nothing was fed changes no law, to the bit; a position that was fed, by a pass or by `keep`,
    does."""
    rows, image = len(CAPTIONS), SMALL.prefix

    def law(spoiled, kept=()):
        model = LlamaGen(net, *condition, guided=False)
        model.logits(torch.tensor([[0, 5, 6]]).expand(rows, -1), torch.tensor([[-1, 0, 1]]).expand(rows, -1))
        if kept:
            model.tree(*(torch.tensor([x]).expand(rows, -1) for x in ([6, 8], [1, 2], [-1, 0])))
            model.keep(torch.tensor([kept]).expand(rows, -1))
        spoil(model, [image + i for i in spoiled])
        return model.logits(torch.tensor([[9, 3]]).expand(rows, -1), torch.tensor([[4, 7]]).expand(rows, -1))

    plain = law([])
    assert torch.equal(plain, law([2, 3, 5, 6]))
    assert torch.equal(plain, law(range(8, 16)))
    for i in (0, 1):
        assert not torch.equal(plain, law([i]))
    with_tree = law([], kept=(0, 1))
    assert torch.equal(with_tree, law([3], kept=(0, 1)))
    assert not torch.equal(with_tree, law([2], kept=(0, 1)))
    assert torch.equal(law([], kept=(0,)), law([2], kept=(0,)))  # evaluated beside the cache, not kept


def test_speculative_sampling_with_a_network_as_the_draft_model(net, condition):
    """The draft model's cache is caught up, guidance and all: the target as its own draft accepts everything. A smaller
    one is rejected at times; each row alone is the row in the batch."""
    torch.manual_seed(3)
    small = Transformer(LlamaGenConfig(**{**asdict(SMALL), "dim": 16, "layers": 1})).double().eval()
    sampling = TokenSampling(guidance=3.0, top_k=20)

    def run(draft, rows=(0, 1, 2), **o):
        given = [x[list(rows)] for x in condition]
        inner, inner.draft = LlamaGen(net, *given, True), LlamaGen(draft, *given, True, returns=True)
        return decoded(spec, Sampled(inner, sampling), rows, **o)

    assert run(net, gamma=3).kept.tolist() == [[4, 4, 4, 4]] * 3
    together = run(small, gamma=3)
    assert (together.nfe > 4).all()
    assert len(set(together.nfe.tolist())) > 1  # ragged
    for r in range(3):
        alone = run(small, rows=[r], gamma=3)
        assert torch.equal(alone.tokens[0], together.tokens[r])
        assert alone.nodes[0] == together.nodes[r]
