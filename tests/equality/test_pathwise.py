"""Pathwise: a coupled decoder returns plain decoding's very tokens, an uncoupled one is rejected."""

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.decoders.discrete.jacobi import jacobi
from parity.equality.pathwise import pathwise, token_row
from parity.equality.targets.discrete import targets


@pytest.mark.parametrize(("coupling", "verdict"), [("shared", "identical"), ("fresh", "rejected")])
def test_only_a_coupled_decoder_returns_the_very_tokens(coupling, verdict):
    found = pathwise(jacobi, targets("small"), {"window": 3, "coupling": coupling}, n=2000)
    exact = [r for r in found if r["test"].endswith("float64")]
    assert {r["verdict"] for r in exact} == {verdict} and all(r["decides"] for r in exact)
    assert all((r["effect"] > 0.1) == (verdict == "rejected") for r in exact)


def test_differences_by_rounding_are_stated_and_reject_nothing():
    a = np.zeros((1000, 4), int)
    b = a.copy()
    b[7, 2] = 1
    row = token_row(a, b, exact=False)
    assert row["effect"] == 0.001 and not row["decides"] and "first: row 7, position 2" in row["note"]
    assert row["verdict"] == "differs by rounding" and token_row(a, b, exact=True)["verdict"] == "rejected"


def test_runs_of_unequal_shape_are_told():
    with pytest.raises(ParityError, match=r"tokens of shape \(2, 3\) and \(2, 4\) cannot be compared"):
        token_row(np.zeros((2, 3)), np.zeros((2, 4)), exact=True)
