"""ZipAR: rows side by side, in order within a row, and what stands in for a token that is not there yet."""

import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.zipar import zipar

from tests.tables import decode_table, make_table


@pytest.mark.parametrize(("L", "width"), [(6, 2), (6, 3), (7, 3), (5, 4), (6, 6)])  # the last row may be short
def test_zipar_waits_for_whole_rows_and_is_plain_decoding_or_starts_early_and_takes_fewer_passes(L, width):
    logits, rows = make_table(3, L), -(-L // width)
    a = decode_table(ar, logits, L, 500, width=width)
    for ahead in range(1, width + 2):
        z = decode_table(zipar, logits, L, 500, width=width, ahead=ahead)
        if ahead >= width:
            assert all(torch.equal(getattr(a, x), getattr(z, x)) for x in ("tokens", "step", "nfe", "nodes", "kept"))
            continue
        assert torch.equal(a.tokens, z.tokens) == (rows == 1)
        start = torch.arange(L) // width * ahead
        assert (z.step == 1 + start + torch.arange(L) % width).all()
        assert (z.nfe == max(width + (rows - 2) * ahead, L - (rows - 1) * width + (rows - 1) * ahead)).all()
        assert L % width or (z.nfe == width + (rows - 1) * ahead).all()


def test_zipar_fills_what_the_grammar_forces():
    """A separator at the end of each row stands there before the row is done; with whole rows the tokens are still
    plain decoding's."""
    forced, logits = torch.tensor([2, -1, 0, -1, 1, 0, -1, -1, 0]), make_table(3, 9)
    a, z = (decode_table(d, logits, 9, 300, width=3, forced=forced, **o) for d, o in ((ar, {}), (zipar, {"ahead": 3})))
    assert torch.equal(a.tokens, z.tokens)
    assert torch.equal(a.nfe, z.nfe)
    z = decode_table(zipar, logits, 9, 300, width=3, forced=forced, ahead=1)
    assert (z.tokens[:, forced >= 0] == forced[forced >= 0]).all()
    assert (z.nfe == 3).all()
    assert (a.nfe == 4).all()
