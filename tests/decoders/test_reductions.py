"""Methods whose options make them one decoder draw the same tokens under the same noise."""

import pytest
import torch

from tests.tables import decode_table, make_table

INITS = ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
TREES = [{"total": 20, "depth": 4}, {"total": 5, "depth": 2, "top_k": 2}, {"total": 9, "depth": 3, "top_k": 3}]
LOGITS = make_table(4, 6)


def decode_tokens(method, **method_options):
    """Decode 500 rows of six tokens with four values, always with the same noise; return tokens [500, 6]."""
    return decode_table(method, LOGITS, 6, 500, **method_options).tokens


PLAIN = decode_tokens("ar")


@pytest.mark.parametrize("init", INITS)
def test_a_window_of_one_is_plain_decoding(init):
    decoded = decode_table("sjd", LOGITS, 6, 500, window=1, init=init)
    assert (decoded.nfe == 6).all()
    assert init != "random" or torch.equal(decoded.tokens, PLAIN)


@pytest.mark.parametrize("init", INITS)
def test_groups_of_one_are_single_tokens(init):
    base = decode_tokens("sjd", window=3, init=init)
    for resample in ("token", "group"):
        assert torch.equal(base, decode_tokens("gsd", window=3, init=init, group=1, resample=resample))
    assert not torch.equal(base, decode_tokens("gsd", window=3, init=init, group=3, delta=1.0, distance=9.0))


def test_coupled_windows_of_random_drafts_are_jacobi_windows():
    jacobi = decode_table("jacobi", LOGITS, 6, 500, window=3, coupling="shared")
    coupled = decode_table("sjd_coupled", LOGITS, 6, 500, window=3, init="random")
    assert torch.equal(jacobi.tokens, coupled.tokens)
    assert torch.equal(jacobi.nfe, coupled.nfe)
    assert torch.equal(PLAIN, decode_tokens("sjd_coupled", window=1, coupling="maximal", init="random"))


@pytest.mark.parametrize(("init", "warm"), [("random", False), ("sample_above", True), ("repeat_left", True)])
def test_one_branch_is_a_chain(init, warm):
    chain = decode_tokens("sjd_coupled", window=4, init=init, warm=warm, coupling="maximal")
    assert torch.equal(chain, decode_tokens("sjd_pac", window=4, branches=1, init=init, warm=warm))


@pytest.mark.parametrize("method", ["mtj_draft", "mtj_heads"])
def test_the_target_as_companion_ends_in_one_pass(method):
    """The first pass is drafted too; another companion takes more."""
    method_options = {"window": 6, "branches": 0, "rounds": 6}
    perfect = decode_table(method, LOGITS, 6, 500, drafts=LOGITS, **method_options)
    imperfect = decode_table(method, LOGITS, 6, 500, **method_options)
    assert torch.equal(PLAIN, perfect.tokens)
    assert torch.equal(PLAIN, imperfect.tokens)
    assert perfect.nfe.max() == 1 < imperfect.nfe.max()


@pytest.mark.parametrize("tree", TREES)
def test_trees_without_relaxation_are_plain_decoding(tree):
    assert torch.equal(PLAIN, decode_tokens("eagle", **tree))
    assert torch.equal(PLAIN, decode_tokens("lantern", delta=0.0, **tree))
    assert torch.equal(PLAIN, decode_tokens("eagle", rank="race", **tree))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_vvs_without_skips_is_lantern(tree, delta):
    without_skips = decode_tokens("vvs", delta=delta, schedule="off", **tree)
    assert torch.equal(decode_tokens("lantern", delta=delta, **tree), without_skips)


def test_a_law_without_candidates_is_not_relaxed():
    """Nothing is drafted before the first pass, so its token is that of plain decoding; later ones are others."""
    plain, relaxed = (decode_table(d, LOGITS, 6, 500).tokens for d in ("ar", "lantern_pp"))
    assert torch.equal(plain[:, 0], relaxed[:, 0])
    assert not torch.equal(plain, relaxed)
