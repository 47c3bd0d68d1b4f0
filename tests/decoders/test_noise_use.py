"""Window decoders read each random number at one position of one row; random tokens and drawn drafts use others."""

import pytest
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.discrete.sjd_pac import sjd_pac
from parity_decoders.window import Window

from parity.equality.targets.discrete import long_targets
from parity.equality.targets.long import make_reuse_row

WINDOW = 24
SETTINGS = [
    (sjd, {"window": WINDOW}),
    (sjd, {"window": WINDOW, "init": "sample_above"}),
    (sjd, {"window": WINDOW, "init": "sample_left", "refine": False}),
    (sjd_pac, {"window": WINDOW, "init": "sample_above", "warm": True}),
    (sjd_coupled, {"window": WINDOW, "coupling": "maximal"}),
]


def find_reused_numbers(decoder, options):
    """Find random numbers that a decoder reads twice; return the result row of the test that looks for them."""
    (target,) = (t for t in long_targets({"positions": WINDOW, "lag": 0, "steps": 0}, 4096) if t.tests_batches)
    drawn = target.draw(decoder, target.n, 1, options)
    return make_reuse_row("long", drawn.recorder)


@pytest.mark.parametrize(("decoder", "options"), SETTINGS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_no_number_is_read_at_two_positions(decoder, options):
    row = find_reused_numbers(decoder, options)
    assert row["n"] > 1000
    assert row["verdict"] == "not rejected"


def test_numbers_that_all_passes_share_are_noticed(monkeypatch):
    def draw_by_slot(window):
        """Draw exponentials by numbers of the slots alone, without that of the pass: a fault."""
        return window.noise.exponential("draft race", window.index % window.size, window.model.vocab)

    monkeypatch.setattr(Window, "_draw_draft_races", draw_by_slot)
    assert find_reused_numbers(*SETTINGS[1])["verdict"] == "rejected"
