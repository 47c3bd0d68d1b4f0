"""The text models: one law whichever way it is computed, the training scheme, and the procedural text."""

import numpy as np
import pytest
import torch

from parity.anysubset import __main__ as commands
from parity.base.errors import ConfigError
from parity.base.noise import batch_noise, counted_noise
from parity.decode.anysubset import fill
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.gpt2 import gpt2
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.anysubset.sigma_gpt import sigma_gpt
from parity.embedded import stories
from parity.inputs import tasks
from parity.metrics import score
from parity.models.anysubset.causal import Causal, log_probabilities
from parity.models.anysubset.load import TextModels
from parity.models.anysubset.protocol import Infilling, infilling
from parity.models.anysubset.xlnet import CachedXLNet, XLNet, xlnet
from parity.training import anysubset as train_anysubset
from parity.training import judge as train_judge
from parity.training.anysubset import Scheme, draw_order, joint_nats, masking_rates

V, N, B = 40, 20, 5


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = xlnet(V, 32, 2, 4).eval()
    for p in net.parameters():
        if p.ndim > 1:
            p.data.mul_(10)  # an untrained network is nearly uniform: every law would agree with every other
    return net


@pytest.fixture(scope="module")
def start():
    g = torch.Generator().manual_seed(1)
    known = torch.rand(B, N, generator=g) < 0.2
    known[:, 3] = True
    return infilling(torch.randint(1, V, (B, N), generator=g), known, 0, V, torch.tensor([20, 20, 17, 14, 20]))


def cached(net):
    return CachedXLNet(net.state_dict(), net.config.to_dict(), 0)


class Both:
    """Asks two models, keeps the largest difference, answers with the first."""

    def __init__(self, one, other):
        self.one, self.other, self.worst = one, other, 0.0
        self.vocab, self.mask = one.vocab, one.mask

    def laws(self, tokens, order, begin, ranks, seen):
        p, q = self.one.laws(tokens, order, begin, ranks, seen), self.other.laws(tokens, order, begin, ranks, seen)
        inside = ranks < order.shape[1]
        difference = (p - q)[inside].abs()
        assert difference.isfinite().all()
        self.worst = max(self.worst, difference.max().item() if len(difference) else 0.0)
        return p


@pytest.mark.parametrize(("decoder", "options"), [(sequential, {}), (assd, {"k": 4}), (sigma_gpt, {"orders": 2})])
def test_cached_laws_are_transformers_own(net, start, decoder, options):
    """Through whole decodings: ragged rows, rejected drafts, rows that are finished, orders that change."""
    model = Both(XLNet(net, 0), cached(net))
    fill(start, decoder(model, start, noise=counted_noise(0, range(B)), **options))
    assert model.worst < 1e-5


def test_a_cache_that_misses_a_change_is_found_out(net, start):
    class Stale(CachedXLNet):
        def laws(self, tokens, order, begin, ranks, seen):
            if self.order.shape == order.shape:
                self.line = torch.where(self.line >= 0, tokens, self.line)  # believes that what it kept is still right
            return super().laws(tokens, order, begin, ranks, seen)

    model = Both(XLNet(net, 0), Stale(net.state_dict(), net.config.to_dict(), 0))
    fill(start, assd(model, start, noise=counted_noise(0, range(B)), k=4))
    assert model.worst > 1e-3


def complete(start):
    g = torch.Generator().manual_seed(2)
    return torch.where(start.tokens == 0, torch.randint(1, V, start.tokens.shape, generator=g), start.tokens)


def test_one_pass_gives_every_conditional(net, start):
    """Eq. 6: each law of the joint pass is the law of a pass of its own, which sees nothing else."""
    model, tokens = XLNet(net, 0), complete(start)
    ranks = start.begin[:, None] + torch.arange(4)
    joint = model.laws(tokens, start.order, start.begin, ranks, ranks)
    for s in range(4):
        line = torch.where(torch.arange(N) < ranks[:, s : s + 1], tokens.gather(1, start.order), 0)  # by rank
        alone = torch.zeros_like(tokens).scatter_(1, start.order, line)
        one = model.laws(alone, start.order, start.begin, ranks[:, s : s + 1], ranks[:, s : s + 1])
        torch.testing.assert_close(joint[:, s], one[:, 0], atol=1e-5, rtol=0)
    drafts = model.laws(tokens, start.order, start.begin, ranks, start.begin[:, None].expand_as(ranks))
    torch.testing.assert_close(
        drafts[:, 0], joint[:, 0], atol=1e-5, rtol=0
    )  # the first draft's law is its verification's
    assert (drafts[:, 1:] - joint[:, 1:]).abs().max() > 1e-2  # and no other's


def test_laws_leave_out_the_mask_and_sum_to_one(net, start):
    ranks = start.begin[:, None] + torch.arange(3)
    for model in (XLNet(net, 0), cached(net)):
        p = model.laws(complete(start), start.order, start.begin, ranks, ranks)
        assert (p[..., 0] == 0).all() and torch.allclose(p.sum(-1), torch.ones(()), atol=1e-6)


def test_a_row_of_xlnet_alone_is_the_row_in_a_batch(net, start):
    keys = counted_noise(3, range(B))
    together = fill(start, assd(cached(net), start, noise=keys, k=3))
    for row in (0, 3):
        one = Infilling(*(x[row : row + 1] for x in start))
        alone = fill(one, assd(cached(net), one, noise=counted_noise(3, range(row, row + 1)), k=3))
        end = int(start.end[row])
        assert torch.equal(alone.tokens[0, :end], together.tokens[row, :end])


def test_gpt2_with_a_cache_writes_what_it_writes_without():
    torch.manual_seed(0)
    judge = train_judge.gpt2(V, N + 1, 32, 2, 4)
    for p in judge.parameters():
        p.data.mul_(6 if p.ndim > 1 else 1)
    known = torch.arange(N) < torch.tensor([3, 5, 2, 7, 1])[:, None]
    prefix = infilling(
        torch.randint(1, V, (B, N), generator=torch.Generator().manual_seed(4)),
        known,
        0,
        V,
        torch.tensor([20, 20, 17, 14, 20]),
    )
    plain, kept = (
        fill(prefix, gpt2(Causal(judge, 0, 1, c), prefix, noise=counted_noise(0, range(B)))) for c in (False, True)
    )
    assert torch.equal(plain.tokens, kept.tokens)
    p = Causal(judge, 0, 1, False).laws(
        plain.tokens, prefix.order, prefix.begin, torch.full((B, 1), 6), torch.full((B, 1), 6)
    )
    judged = log_probabilities(judge, plain.tokens, 0, 1)[:, 6]
    torch.testing.assert_close(p[:, 0].gather(1, plain.tokens[:, 6:7])[:, 0].log(), judged, atol=1e-5, rtol=0)


# --- the training scheme


def test_the_loss_is_the_joint_conditional(net, start):
    tokens, order = complete(start), start.order
    nats = joint_nats(net, tokens, order, start.begin)
    ranks = torch.arange(N).expand(B, N)
    p = XLNet(net, 0).laws(tokens, order, start.begin, ranks, ranks.maximum(start.begin[:, None]))
    own = -p.gather(-1, tokens.gather(1, order)[..., None])[..., 0].log()
    wanted = torch.where(ranks < start.begin[:, None], 0, own)
    torch.testing.assert_close(nats.gather(1, order), wanted, atol=1e-4, rtol=1e-4)


def test_masking_rates_move_to_their_bounds_and_are_stratified():
    scheme, rng = Scheme(start=0.05, low=0.15, high=0.99, warmup=100), np.random.default_rng(0)
    assert np.allclose(masking_rates(scheme, 0, 64, rng), 0.05)
    half = masking_rates(scheme, 50, 4096, rng)
    assert half.min() >= 0.10 and half.max() <= 0.52 and half.max() > 0.51
    full = masking_rates(scheme, 100, 4096, rng)
    assert 0.15 <= full.min() < 0.16 and 0.98 < full.max() <= 0.99
    free = Scheme(warmup=0, independent=True)
    spread = [np.std([masking_rates(s, 1, 16, rng).mean() for _ in range(300)]) for s in (Scheme(warmup=0), free)]
    assert spread[0] < 0.3 * spread[1]  # low discrepancy: batches hardly differ in their mean rate


def test_orders_are_the_lattices_unless_permuted():
    for permutations in (0.0, 1.0):
        order, m = draw_order(Scheme(warmup=0, permutations=permutations), 0, (64, 32), np.random.default_rng(1))
        assert (order.sort(1).values == torch.arange(32)).all()
        ascending = [bool((o[k:].diff() > 0).all()) for o, k in zip(order, m.tolist(), strict=True)]
        assert (
            all(ascending)
            if not permutations
            else not any(a for a, k in zip(ascending, m.tolist(), strict=True) if k < 28)
        )


@pytest.mark.parametrize("recipe", [train_anysubset, train_judge])
def test_recipes_train_and_publish(recipe, tmp_path):
    first = recipe.main(
        work=tmp_path, out=tmp_path / "a.safetensors", steps=12, batch=4, examples=8, seed=0, processes=1
    )
    assert first[0]["step"] == 12 and np.isfinite(first[0]["loss"])
    assert first[0]["loss"] < np.log(len(stories.vocabulary())) + 0.5
    again = recipe.main(
        work=tmp_path, out=tmp_path / "b.safetensors", steps=12, batch=4, examples=8, seed=0, processes=1
    )
    assert (
        len(again) == 1 and (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    )  # resumed at its end


# --- the text


def test_stories_and_snippets_say_known_words_and_hold_out_their_pairs():
    known = set(stories.vocabulary())
    for seed in range(150):
        for test in (False, True):
            assert set(stories.text(seed, test)) <= known
            s, code = stories.story(seed, test), stories.snippet(seed, test)
            assert stories.held_out(s.happening, s.thing) == test and stories.held_out(*code.steps) == test
            assert len(s.sentences) == 5 and s.thing in s.sentences[4]
    assert stories.text(3) == stories.text(3) != stories.text(4)


def test_snippets_pass_their_own_tests():
    for seed in range(60):
        code = stories.snippet(seed, bool(seed % 2))
        program = stories.source([w for line in code.lines for w in (*line, stories.LINE)])
        scope: dict = {}
        exec(program, scope)
        for test in code.tests:
            exec(test, scope)
        with pytest.raises(AssertionError):
            for test in code.tests:
                exec(test, {**scope, code.lines[0][1]: lambda *a: None})


# --- weights from files


def folders(tmp_path):
    """A published pair as transformers saves it, with one word tokenizer each."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    names = ["<mask>", "<sep>", "<unk>", *[f"w{i}" for i in range(V - 3)]]
    for name, net in (("xlnet", xlnet(V, 32, 2, 4)), ("judge", train_judge.gpt2(V, N + 1, 32, 2, 4))):
        net.save_pretrained(tmp_path / name)
        raw = Tokenizer(WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
        raw.pre_tokenizer = Whitespace()
        words = PreTrainedTokenizerFast(
            tokenizer_object=raw, mask_token="<mask>", sep_token="<sep>", unk_token="<unk>", eos_token="<sep>"
        )
        words.save_pretrained(tmp_path / name)
    return TextModels(str(tmp_path / "xlnet"), str(tmp_path / "judge"))


def test_published_folders_are_read_and_both_forwards_agree(tmp_path, start):
    models = folders(tmp_path)
    assert models.words.encode("w0 w5") == [3, 8] and (
        models.words.mask,
        models.words.separator,
        models.words.vocab,
    ) == (0, 1, V)
    ranks = start.begin[:, None] + torch.arange(3)
    asked = (complete(start), start.order, start.begin, ranks, ranks)
    torch.testing.assert_close(models.subset(True).laws(*asked), models.subset(False).laws(*asked), atol=1e-5, rtol=0)
    assert not models.one_vocabulary  # two tokenizers are two, whatever they hold: the judge rereads the text
    rows = {"tokens": np.array([[3, 4, 5], [6, 7, 1]]), "end": np.array([3, 2])}
    judged, end = commands.reread(models, rows)
    assert judged.tolist() == [[3, 4, 5], [6, 7, 1]] and end.tolist() == [3, 2]
    assert np.isfinite(score.perplexities(models.gpt2, judged, end, 0, 1)).all()


def test_a_folder_that_lacks_a_weight_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    models = folders(tmp_path)
    file = tmp_path / "xlnet" / "model.safetensors"
    state = load_file(file)
    del state["transformer.layer.1.rel_attn.q"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks or has too much: transformer.layer.1.rel_attn.q"):
        models.subset(False)
    with pytest.raises(ConfigError, match=r"needs config\.json"):
        TextModels(str(tmp_path), str(tmp_path)).subset(True)


def test_embedded_models_load_and_assd_saves_passes():
    """Figures of docs/text.md: at 95 % masking assd with k = 5 needs at most 0.9 passes per word."""
    models = TextModels()
    assert models.one_vocabulary
    task = tasks.build(
        "infilling", {"rows": 16, "length": 128, "masked": 0.95, "prompt": "scattered", "data": ""}, models.words
    )
    begin = infilling(*(torch.from_numpy(x) for x in (task.tokens, task.known)), models.words.mask, models.words.vocab)
    done = fill(begin, assd(models.subset(True), begin, noise=batch_noise(2, task.ids), k=5))
    assert (done.nfe / (begin.end - begin.begin)).mean() <= 0.9
    ppl = [
        score.perplexities(models.gpt2, t, begin.end, 0, 1).mean()
        for t in (done.tokens, torch.randint(2, 384, (16, 128)))
    ]
    assert ppl[0] < 30 < 300 < ppl[1]


def test_conditionals_of_the_embedded_model_agree():
    """With its shipped weights: transformers' forward against the cache, and the first draft's law against its verification's, to 1e-5."""
    models = TextModels()
    task = tasks.build(
        "infilling", {"rows": 3, "length": 48, "masked": 0.9, "prompt": "scattered", "data": ""}, models.words
    )
    begin = infilling(*(torch.from_numpy(x) for x in (task.tokens, task.known)), models.words.mask, models.words.vocab)
    both = Both(models.subset(False), models.subset(True))
    done = fill(begin, assd(both, begin, noise=batch_noise(2, task.ids), k=5))
    ranks = begin.begin[:, None] + torch.arange(6)
    for model in (both.one, both.other):
        drafts = model.laws(done.tokens, begin.order, begin.begin, ranks, begin.begin[:, None].expand_as(ranks))
        joint = model.laws(done.tokens, begin.order, begin.begin, ranks, ranks)
        assert (drafts[:, 0] - joint[:, 0]).abs().max() <= 1e-5 < 1e-2 < (drafts[:, 1:] - joint[:, 1:]).abs().max()
    assert both.worst <= 1e-5
