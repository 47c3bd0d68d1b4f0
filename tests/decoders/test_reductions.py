"""Methods of one family are the same decoder where their options say so: token for token, under the same noise."""

import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.eagle import eagle
from parity_decoders.discrete.gsd import gsd
from parity_decoders.discrete.jacobi import jacobi
from parity_decoders.discrete.lantern import lantern
from parity_decoders.discrete.lantern_pp import lantern_pp
from parity_decoders.discrete.mtj import mtj
from parity_decoders.discrete.mtj_draft import mtj_draft
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.discrete.sjd_pac import sjd_pac
from parity_decoders.discrete.vvs import vvs

from tests.tables import decode_table, make_table

INITS = ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
TREES = [{"total": 20, "depth": 4}, {"total": 5, "depth": 2, "top_k": 2}, {"total": 9, "depth": 3, "top_k": 3}]
CHAINS = [
    {"window": 3, "branches": 2, "depth": 2},
    {"window": 4, "branches": 5, "depth": 1},
    {"window": 2, "branches": 2},
    {"window": 1},
]
LOGITS = make_table(4, 6)


def tokens(method, **given):
    return decode_table(method, LOGITS, 6, 500, **given).tokens


PLAIN = tokens(ar)


@pytest.mark.parametrize("init", INITS)
def test_a_window_of_one_is_plain_decoding(init):
    done = decode_table(sjd, LOGITS, 6, 500, window=1, init=init)
    assert (done.nfe == 6).all()
    assert init != "random" or torch.equal(done.tokens, PLAIN)


@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_jacobi_with_shared_noise_is_plain_decoding_in_fewer_passes(window):
    done = decode_table(jacobi, LOGITS, 6, 500, window=window, coupling="shared")
    assert torch.equal(done.tokens, PLAIN)
    assert (done.nfe <= 6).all()
    assert (window == 1) == (done.nfe == 6).all().item()


@pytest.mark.parametrize("init", INITS)
def test_groups_of_one_are_single_tokens(init):
    base = tokens(sjd, window=3, init=init)
    for resample in ("token", "group"):
        assert torch.equal(base, tokens(gsd, window=3, init=init, group=1, resample=resample))
    assert not torch.equal(base, tokens(gsd, window=3, init=init, group=3, delta=1.0, distance=9.0))


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("warm", [False, True])
def test_one_race_a_position_is_plain_decoding_wherever_drafts_come_from(init, warm):
    assert torch.equal(PLAIN, tokens(sjd_coupled, window=4, init=init, warm=warm))


def test_coupled_windows_of_random_drafts_are_jacobis():
    own, coupled = (
        decode_table(d, LOGITS, 6, 500, window=3, **o)
        for d, o in ((jacobi, {"coupling": "shared"}), (sjd_coupled, {"init": "random"}))
    )
    assert torch.equal(own.tokens, coupled.tokens)
    assert torch.equal(own.nfe, coupled.nfe)
    assert torch.equal(PLAIN, tokens(sjd_coupled, window=1, coupling="maximal", init="random"))


@pytest.mark.parametrize(("init", "warm"), [("random", False), ("sample_above", True), ("repeat_left", True)])
def test_one_branch_is_a_chain(init, warm):
    chain = tokens(sjd_coupled, window=4, init=init, warm=warm, coupling="maximal")
    assert torch.equal(chain, tokens(sjd_pac, window=4, branches=1, init=init, warm=warm))


def test_no_branches_are_a_coupled_chain():
    chain, bare = (
        decode_table(d, LOGITS, 6, 500, window=4, warm=True, **o)
        for d, o in ((sjd_coupled, {}), (mtj, {"branches": 0}))
    )
    assert torch.equal(chain.tokens, bare.tokens)


@pytest.mark.parametrize("tree", CHAINS)
@pytest.mark.parametrize("warm", [False, True])
def test_whatever_is_evaluated_beside_the_chain_the_tokens_are_plain_decodings(tree, warm):
    assert torch.equal(PLAIN, tokens(mtj, **tree, warm=warm))


def test_a_draft_model_that_is_the_target_foresees_every_token():
    """So the pass behind the first, whose laws are of noise, ends the picture. Another draft model takes more."""
    given = {"window": 6, "branches": 0, "rounds": 6}
    same, other = (decode_table(mtj_draft, LOGITS, 6, 500, drafts=drafts, **given) for drafts in (LOGITS, None))
    assert torch.equal(PLAIN, same.tokens)
    assert torch.equal(PLAIN, other.tokens)
    assert same.nfe.max() == 2 < other.nfe.max()


@pytest.mark.parametrize("tree", TREES)
def test_a_drafters_tree_of_given_candidates_is_plain_decoding_and_without_skips_vvs_is_lantern(tree):
    assert torch.equal(PLAIN, tokens(eagle, **tree))
    assert torch.equal(PLAIN, tokens(lantern, delta=0.0, **tree))
    assert torch.equal(PLAIN, tokens(eagle, rank="race", **tree))
    for delta in (0.0, 0.3):
        assert torch.equal(tokens(lantern, delta=delta, **tree), tokens(vvs, delta=delta, schedule="off", **tree))


def test_where_there_is_no_candidate_no_law_is_relaxed():
    """Nothing can be drafted before the first pass, so its token is plain decoding's; later ones are others."""
    plain, relaxed = (decode_table(d, LOGITS, 6, 500).tokens for d in (ar, lantern_pp))
    assert torch.equal(plain[:, 0], relaxed[:, 0])
    assert not torch.equal(plain, relaxed)
