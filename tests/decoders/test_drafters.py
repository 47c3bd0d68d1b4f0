"""Decoders with a drafter; methods whose options make them one decoder draw the same tokens."""

from types import SimpleNamespace

import pytest
import torch
from parity_decoders.candidates import grow_dynamic_tree
from parity_decoders.discrete.eagle import eagle
from parity_decoders.discrete.lantern_pp import lantern_pp
from parity_decoders.discrete.spec import spec
from parity_decoders.discrete.vvs import measure_similarity, vvs
from parity_decoders.distribution import TokenSampling
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.verification import descend, find_nearest_tokens

from parity.decode.discrete import record
from parity.models.discrete.tabular import TabularDrafter, TabularModel, count_prefixes
from tests.tables import decode_table, make_table


def draw_tree(model, rows, total, depth, top_k, shift=0.0):
    """Grow EAGLE-2's tree after the prompt's last token; `shift` is added to the distribution that the drafter gives
    there."""
    root = torch.zeros(rows, 1, dtype=torch.int64)
    probs = model.drafter.logits(root, root - 1, root - 1)[:, -1]
    return grow_dynamic_tree(model.drafter, probs + shift, root[:, 0] - 1, total, depth, top_k)


def test_similarity_compares_candidate_sequences():
    """VVS, eq. 2: it is 1 if all codes are equal and less if they differ."""
    codes = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tree = draw_tree(TabularModel(make_table(6, 4), 4, 5), 5, 12, 3, 4)
    assert torch.allclose(measure_similarity(tree, codes[:1].expand(6, -1), 3, 0.9, 1), torch.ones(5).double())
    similarity = measure_similarity(tree, codes, 3, 0.9, 1)
    assert (similarity < 1).all()
    assert not torch.equal(similarity, measure_similarity(tree, codes, 3, 0.1, 1))


def test_nearest_tokens_of_a_rejected_candidate_are_rejected():
    """LANTERN: they are not drawn later. A candidate is accepted with the probability of its set."""
    n, V = 100_000, 4
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).expand(n, 2, V)
    # The nearest other token of 0 is 1, of 1 is 0, of 2 is 1, of 3 is 2.
    nearest_tokens = find_nearest_tokens(torch.arange(V, dtype=torch.float64)[:, None], 1)
    noise, index = counted_noise(0, range(n)), torch.arange(2).expand(n, 2)
    tokens, parents = torch.tensor([[0, 0]]).expand(n, -1), torch.tensor([[-1, 0]]).expand(n, -1)
    starts = torch.zeros(n, dtype=torch.int64)
    random = noise.exponential("sample", index, V), noise.uniform("accept", index[:, :1, None])
    for delta, reject, rate in ((0.2, "counted", 0.3), (0.1, "all", 0.1)):
        # "counted": accepted at .1 + its nearest tokens's .2; "all": .2 exceeds the budget and is not counted, yet
        # rejected
        path, drawn = descend(p, tokens, parents, starts, *random, nearest_tokens, delta, reject)
        accepted = path[:, 1] >= 0
        assert abs(accepted.double().mean().item() - rate) < 4 * (rate * (1 - rate) / n) ** 0.5
        assert not (drawn[~accepted, 0] < 2).any()


def test_a_perfect_drafter_saves_passes_and_skipping_more():
    """The drafter equals its target, so every path of its tree is accepted."""
    logits = make_table(3, 9)
    start = torch.zeros(500, dtype=torch.int64)
    model = TabularModel(logits, 9, 500)
    model.drafter = TabularDrafter(TabularModel(logits, 9, 500))
    size = {"noise": counted_noise(1, range(500)), "total": 12, "depth": 2, "top_k": 3}
    skipping = {"delta": 0.0, "interval": 2, "truncate": False}
    # Passes of eagle: one token, twice two candidates and the draw after them, then the last two.
    assert (record(model, start, eagle(model, start, **size)).nfe == 4).all()
    # With skipped verifications the passes make 1, 2 + 2 + 1 and 2 + 1 tokens final.
    assert (record(model, start, vvs(model, start, **size, **skipping)).nfe == 3).all()


# --- decoders with a draft model


@pytest.mark.parametrize("sampling", [None, TokenSampling(guidance=2.0, temperature=0.8, top_k=3)])
@pytest.mark.parametrize("gamma", [1, 2, 4, 9])
def test_spec_accepts_all_drafts_of_the_target(gamma, sampling):
    """A pass keeps gamma + 1 tokens, the last pass the rest, so no draft lacks its context."""
    logits = make_table(4, 6, pair=sampling is not None)
    perfect = decode_table(spec, logits, 6, 2000, drafts=logits, gamma=gamma, sampling=sampling)
    sizes = [min(gamma + 1, 6 - n) for n in range(0, 6, gamma + 1)]
    assert (perfect.kept == torch.tensor(sizes)).all()
    assert (perfect.nodes == 6).all()
    drafts = make_table(4, 6, seed=9, pair=sampling is not None)
    imperfect = decode_table(spec, logits, 6, 2000, drafts=drafts, gamma=gamma, sampling=sampling)
    assert imperfect.nfe.float().mean() > perfect.nfe.float().mean() + 0.2
    assert (imperfect.nodes > 6).float().mean() > 0.2


def test_spec_accepts_with_one_minus_the_total_variation():
    """Leviathan et al. 2023, Theorem 3.5, on a model whose distributions are all equal."""
    p, q = (make_table(4, 1, seed=s)[0] for s in (1, 2))
    target, drafts = (x.expand(count_prefixes(4, 6), -1) for x in (p, q))
    decoded = decode_table(spec, target, 6, 20_000, drafts=drafts, gamma=1)
    expected = 1 - 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum().item()
    accepted = (decoded.kept[:, 0] == 2).double().mean().item()
    assert abs(accepted - expected) < 4 * (expected * (1 - expected) / 20_000) ** 0.5


INITS = ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
TREES = [{"total": 20, "depth": 4}, {"total": 5, "depth": 2, "top_k": 2}, {"total": 9, "depth": 3, "top_k": 3}]
LOGITS = make_table(4, 6)


def decode_tokens(method, **method_options):
    """Decode 500 rows of six tokens with four values, always with the same noise; return tokens [500, 6]."""
    return decode_table(method, LOGITS, 6, 500, **method_options).tokens


PLAIN = decode_tokens("ar")


@pytest.mark.parametrize("init", INITS)
def test_groups_of_one_are_single_tokens(init):
    base = decode_tokens("sjd", window=3, init=init)
    for resample in ("token", "group"):
        assert torch.equal(base, decode_tokens("gsd", window=3, init=init, group=1, resample=resample))
    assert not torch.equal(base, decode_tokens("gsd", window=3, init=init, group=3, delta=1.0, distance=9.0))


@pytest.mark.parametrize(("init", "warm"), [("random", False), ("sample_above", True), ("repeat_left", True)])
def test_one_branch_is_a_chain(init, warm):
    chain = decode_tokens("sjd_coupled", window=4, init=init, warm=warm, coupling="maximal")
    assert torch.equal(chain, decode_tokens("sjd_pac", window=4, branches=1, init=init, warm=warm))


@pytest.mark.parametrize("method", ["mtj_draft", "mtj_heads"])
def test_the_target_as_speculator_ends_in_one_pass(method):
    """The first pass is drafted too; another speculator takes more."""
    method_options = {"window": 6, "branches": 0, "rounds": 6}
    perfect = decode_table(method, LOGITS, 6, 500, drafts=LOGITS, **method_options)
    imperfect = decode_table(method, LOGITS, 6, 500, **method_options)
    assert torch.equal(PLAIN, perfect.tokens)
    assert torch.equal(PLAIN, imperfect.tokens)
    assert perfect.nfe.max() == 1 < imperfect.nfe.max()


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_vvs_without_skips_is_lantern(tree, delta):
    without_skips = decode_tokens("vvs", delta=delta, schedule="off", **tree)
    assert torch.equal(decode_tokens("lantern", delta=delta, **tree), without_skips)


def test_a_distribution_without_candidates_is_not_relaxed():
    """Nothing is drafted before the first pass, so its token is that of plain decoding; later ones are others."""
    plain, relaxed = (decode_table(d, LOGITS, 6, 500).tokens for d in ("ar", "lantern_pp"))
    assert torch.equal(plain[:, 0], relaxed[:, 0])
    assert not torch.equal(plain, relaxed)


def test_a_static_tree_of_too_many_nodes_is_refused():
    with pytest.raises(DecodingError, match="breadth 16, depth 16: a tree of 37825 nodes; allowed: at most 4096"):
        model = SimpleNamespace(vocab=64, length=8, forced=torch.full((8,), -1))
        lantern_pp(model, torch.zeros(1, dtype=torch.int64), noise=counted_noise(0, range(1)), breadth=16, depth=16)
