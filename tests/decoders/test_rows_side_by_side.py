"""Decoders of rows of an image side by side: parallel Jacobi decoding refines them, ZipAR draws them."""

import pytest
import torch

from tests.tables import compute_p_value, compute_probs, count_sequences, decode_table, make_table

LENGTHS = [(6, 2), (6, 3), (7, 3), (5, 4), (6, 6)]  # positions and width; the last row may be short
SETTINGS = [{"window": 2, "ahead": 1}, {"window": 3, "ahead": 2, "init": "sample_above"}, {"window": 9, "ahead": 1}]


@pytest.mark.parametrize(("L", "width"), LENGTHS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_raster_order_is_plain_decoding(L, width, settings):
    logits = make_table(3, L)
    plain = decode_table("ar", logits, L, 500, width=width)
    decoded = decode_table("pjd", logits, L, 500, width=width, commit="raster", **settings)
    assert torch.equal(plain.tokens, decoded.tokens)
    assert (decoded.step.diff(dim=1) >= 0).all()
    assert decoded.nfe.sum() < plain.nfe.sum()


@pytest.mark.parametrize(("L", "width"), [(9, 3), (8, 4), (7, 3)])
def test_a_row_follows_the_row_above(L, width):
    """A row opens after `ahead` tokens of the row above, and is never further: a token is final after the one above."""
    for ahead in range(1, width):
        decoded = decode_table("pjd", make_table(2, L), L, 500, width=width, window=3, ahead=ahead)
        above, below = decoded.step[:, : L - width], decoded.step[:, width:]
        assert (below > above).all()
        opened = decoded.step[:, ahead - 1 : L - width : width]
        assert (decoded.step[:, width::width][:, : opened.shape[1]] > opened).all()
        is_early = decoded.step[:, width::width] < decoded.step[:, width - 1 : L - 1 : width]
        assert is_early.any() or ahead > 1  # with 1, rows begin before the row above them ends


GRAMMAR = torch.tensor([2, -1, 0, -1, 1, 0, -1, -1, 0])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pjd", {"ahead": 1, "window": 3}),
        ("pjd", {"ahead": 1, "window": 3, "rejected": "reuse"}),
        ("pjd", {"ahead": 2, "window": 3, "commit": "raster"}),
        ("zipar", {"ahead": 1}),
    ],
)
def test_rows_side_by_side_keep_to_the_grammar(method, settings):
    """A separator at a row's end is known before the row is done."""
    tokens = decode_table(method, make_table(3, 9), 9, 300, width=3, forced=GRAMMAR, **settings).tokens
    assert (tokens[:, GRAMMAR >= 0] == GRAMMAR[GRAMMAR >= 0]).all()


def test_drafts_that_stay_after_a_rejection_are_biased():
    """A single row, so that nothing else can be: those that are drawn anew are not."""
    logits = make_table(3, 5)
    probs = compute_probs(logits, 3, 5)
    p_values = {
        rejected: compute_p_value(
            count_sequences(decode_table("pjd", logits, 5, 20_000, width=5, window=4, rejected=rejected).tokens, 3),
            probs,
        )
        for rejected in ("redraw", "reuse")
    }
    assert p_values["reuse"] < 1e-6
    assert p_values["redraw"] > 1e-4


@pytest.mark.parametrize(("L", "width"), LENGTHS)
@pytest.mark.parametrize("surplus", [0, 1])
def test_zipar_with_whole_rows_is_plain_decoding(L, width, surplus):
    logits = make_table(3, L)
    plain = decode_table("ar", logits, L, 500, width=width)
    decoded = decode_table("zipar", logits, L, 500, width=width, ahead=width + surplus)
    for name in ("tokens", "step", "nfe", "nodes", "kept"):
        assert torch.equal(getattr(plain, name), getattr(decoded, name)), name


@pytest.mark.parametrize(("L", "width"), LENGTHS)
def test_zipar_starts_rows_early_and_saves_passes(L, width):
    rows = -(-L // width)
    plain = decode_table("ar", make_table(3, L), L, 500, width=width)
    for ahead in range(1, width):
        decoded = decode_table("zipar", make_table(3, L), L, 500, width=width, ahead=ahead)
        assert torch.equal(plain.tokens, decoded.tokens) == (rows == 1)
        start = torch.arange(L) // width * ahead
        assert (decoded.step == 1 + start + torch.arange(L) % width).all()
        assert (decoded.nfe == max(width + (rows - 2) * ahead, L - (rows - 1) * width + (rows - 1) * ahead)).all()
        assert L % width or (decoded.nfe == width + (rows - 1) * ahead).all()
