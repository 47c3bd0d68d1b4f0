"""ZipAR decodes rows of a picture side by side."""

import pytest
import torch

from tests.tables import decode_table, make_table

SIZES = [(6, 2), (6, 3), (7, 3), (5, 4), (6, 6)]  # the last row may be short


@pytest.mark.parametrize(("L", "width"), SIZES)
@pytest.mark.parametrize("surplus", [0, 1])
def test_zipar_with_whole_rows_is_plain_decoding(L, width, surplus):
    logits = make_table(3, L)
    plain = decode_table("ar", logits, L, 500, width=width)
    decoded = decode_table("zipar", logits, L, 500, width=width, ahead=width + surplus)
    for name in ("tokens", "step", "nfe", "nodes", "kept"):
        assert torch.equal(getattr(plain, name), getattr(decoded, name)), name


@pytest.mark.parametrize(("L", "width"), SIZES)
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


def test_zipar_keeps_to_the_grammar():
    """A separator at a row's end is written before the row is done; with whole rows the tokens are plain decoding's."""
    forced = torch.tensor([2, -1, 0, -1, 1, 0, -1, -1, 0])
    settings = {"width": 3, "forced": forced}
    plain = decode_table("ar", make_table(3, 9), 9, 300, **settings)
    whole_rows = decode_table("zipar", make_table(3, 9), 9, 300, ahead=3, **settings)
    early = decode_table("zipar", make_table(3, 9), 9, 300, ahead=1, **settings)
    assert torch.equal(plain.tokens, whole_rows.tokens)
    assert torch.equal(plain.nfe, whole_rows.nfe)
    assert (early.tokens[:, forced >= 0] == forced[forced >= 0]).all()
    assert (early.nfe == 3).all()
    assert (plain.nfe == 4).all()
