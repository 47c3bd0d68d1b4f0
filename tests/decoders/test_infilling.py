"""Any-subset decoders: distributions on enumerable models, the paper's order, theorem and lemma, bad prompts."""

import pytest
import torch
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.assd_ngram import assd_ngram
from parity_decoders.anysubset.assd_quadratic import assd_quadratic
from parity_decoders.anysubset.diffusion import diffusion
from parity_decoders.anysubset.gpt2 import gpt2
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.anysubset.sigma_gpt import sigma_gpt
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.anysubset import Infilling, make_infilling, make_lattice, next_ranks
from parity_decoders.verification import finish, probability, sample_token

from parity.decode.anysubset import record
from parity.models.anysubset.tabular import TabularAnySubset, compute_joint_probs, consistent_table, encode_rows
from tests.equality.faults import patch_module
from tests.tables import compute_p_value, draw_prompts, make_text_model

# --- the order in which texts are decoded


def test_order_is_prompt_then_the_rest_left_to_right():
    known_mask = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]]).bool()
    order, starts, ends = make_lattice(known_mask, torch.tensor([6, 4]))
    assert order.tolist() == [[1, 4, 0, 2, 3, 5], [0, 3, 1, 2, 4, 5]]
    assert starts.tolist() == [2, 2]
    assert ends.tolist() == [6, 4]
    slots = next_ranks(Infilling(known_mask.long(), order, starts, ends), starts + 1, 2)
    assert slots.rank.tolist() == [[3, 4], [3, 4]]
    assert slots.position.tolist() == [[2, 3], [2, 4]]
    assert slots.open.tolist() == [[True, True], [True, False]]
    assert slots.asked.tolist() == [[3, 4], [3, 6]]


# --- decoded texts have the distribution of the model


def compute_method_p_value(method, n=20_000, consistent=False, **method_options):
    """Decode n texts of five tokens, three of them missing in two places, and return the p-value of their counts under
    the exact distribution. With `consistent` the model's conditionals are those of one joint distribution."""
    table = consistent_table(3, 5, torch.Generator().manual_seed(1))
    model = TabularAnySubset(table) if consistent else make_text_model(3, 5, 1)
    known_mask = torch.tensor([[False, True, False, True, False]]).expand(n, -1)
    start = make_infilling(torch.tensor([[0, 2, 0, 1, 0]]).expand(n, -1), known_mask, model.mask, model.vocab)
    decoded = record(model, start, method(model, start, noise=counted_noise(2, range(n)), **method_options))
    observed = torch.bincount(torch.from_numpy(encode_rows(model, start, decoded.tokens)), minlength=27).double()
    return compute_p_value(observed, torch.from_numpy(compute_joint_probs(model, start)))


@pytest.mark.parametrize(
    ("method", "method_options"),
    [
        (sequential, {}),
        (assd, {"k": 2}),
        (assd, {"k": 3}),
        (assd, {"k": 5}),
        (assd_ngram, {"k": 3}),
        (assd_quadratic, {"k": 1}),
        (assd_quadratic, {"k": 3}),
        (assd_quadratic, {"k": 3, "temperature": 0.1}),
        (assd_quadratic, {"k": 2, "temperature": 3.0}),
    ],
)
def test_a_lossless_decoder_draws_from_the_distribution(method, method_options):
    assert compute_method_p_value(method, **method_options) > 1e-4


def verify_without_residual(p, q, draft, point, u, e):
    """Verify drafts, but draw from p instead of the residual after a rejection: a fault."""
    fresh = sample_token(p, e)
    accepted = torch.where(point, fresh == draft, u * probability(q, draft) < probability(p, draft))
    return finish(p, torch.zeros_like(q), draft, point, accepted, fresh, e)


@pytest.mark.parametrize(
    ("method", "method_options"),
    [
        (assd, {"k": 3, "tolerance": 0.1}),
        (patch_module(assd_quadratic.__module__, verify=verify_without_residual).assd_quadratic, {"k": 3}),
        (sigma_gpt, {"orders": 4}),
        (diffusion, {"steps": 2}),
    ],
)
def test_a_lossy_decoder_is_rejected(method, method_options):
    assert compute_method_p_value(method, **method_options) < 1e-6


# --- the paper's Theorem 1 and Lemma 1: no more passes than missing tokens


@pytest.mark.parametrize(("method", "k"), [(assd, 2), (assd, 3), (assd, 5), (assd_quadratic, 1), (assd_quadratic, 3)])
def test_no_more_passes_are_needed_than_tokens(method, k):
    """Theorem 1 on rows of random models, prompts and lengths."""
    saves = method is assd_quadratic or k > 2  # with k = 2 no pass of assd saves one
    for seed, scale in enumerate((0.3, 1.5, 4.0, 1.5)):
        model = make_text_model(3, 6, seed, scale)
        start = draw_prompts(model, 1000, seed)
        decoded = record(model, start, method(model, start, noise=counted_noise(seed, range(1000)), k=k))
        tokens = start.end - start.begin
        assert (decoded.nfe <= tokens).all()
        assert (decoded.nfe[tokens == 1] == 1).all()  # line 9 of the algorithm: the last token needs no verification
        assert saves or (decoded.nfe == tokens).all()
        if method is assd_quadratic:  # a pass keeps its drafts and one more word, but perhaps the last pass of a row
            assert torch.isin(decoded.nfe + decoded.accepted_drafts - tokens, torch.tensor([0, 1])).all()
    assert not saves or (decoded.nfe < tokens).any()


def test_the_controls_break_the_theorem():
    model = make_text_model(3, 6, 1)
    start, noise = draw_prompts(model, 2000), counted_noise(0, range(2000))
    tokens = start.end - start.begin
    assert (record(model, start, sigma_gpt(model, start, noise=noise, orders=2)).nfe > tokens).any()
    decoded = record(model, start, assd_ngram(model, start, noise=noise, k=3))
    assert (decoded.nfe <= tokens).all()
    assert (decoded.nfe + decoded.aux > tokens).any()
    assert (decoded.aux == decoded.nfe).all()


# --- prompts that are refused


@pytest.mark.parametrize(
    ("tokens", "known_mask", "message"),
    [
        ([[1, 2, 0]], [[1, 1, 1]], "row 0: no masked position among 3"),
        ([[1, 2, 0]], [[0, 0, 0]], "row 0: all 3 positions are masked"),
        ([[1, 2, 0], [1, 7, 0]], [[1, 0, 0], [0, 1, 0]], "row 1, position 1: known token 7; allowed: 0 to 3"),
        ([[1, 3, 0]], [[0, 1, 0]], r"row 0, position 1: known token 3 \(the mask\)"),
    ],
)
def test_bad_prompts_are_named(tokens, known_mask, message):
    with pytest.raises(DecodingError, match=message):
        make_infilling(torch.tensor(tokens), torch.tensor(known_mask).bool(), mask=3, vocab=4)


def test_gpt2_refuses_tokens_after_masked_ones():
    model = make_text_model(3, 4)
    start = make_infilling(torch.tensor([[1, 0, 2, 0]]), torch.tensor([[True, False, True, False]]), 3, 4)
    with pytest.raises(DecodingError, match="row 0: known tokens after masked ones"):
        gpt2(model, start, noise=counted_noise(0, range(1)))
