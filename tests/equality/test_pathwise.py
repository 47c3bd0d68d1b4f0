"""Pathwise: a coupled decoder returns plain decoding's very tokens, an uncoupled one is rejected."""

import numpy as np
import pytest
from parity_certify.verdict import verdicts

from parity.decoders.discrete.jacobi import jacobi
from parity.equality.layers.continuous.pathwise import distance_row
from parity.equality.pathwise import pathwise, token_row
from parity.equality.targets.discrete import targets
from parity.experiment import options


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


@pytest.mark.parametrize(("error", "said"), [(5e-4, "equal within eps"), (2e-3, "differs by more than eps")])
def test_a_path_within_its_tolerance_has_a_verdict_of_its_own(error, said):
    """The claim is neither lossless nor lossy; one number too far apart contradicts it."""
    tokens, pictures = np.zeros((2, 1, 4, 2)), np.zeros((2, 1, 3, 8, 8))
    tokens[1, 0, 2, 1], pictures[1, 0, 0, 0, 0] = error, error
    claim = options.claim("continuous", "coupled", options.options("continuous", "coupled", {"law": "path"}))
    row = distance_row(tokens, pictures, eps=1e-3, method="coupled", key="k")
    verdict = verdicts([row], {"k": claim}, 0.01)[0]
    assert claim == "equal within eps" and verdict["verdict"] == said
    assert verdict["mismatch"] == (said != claim) and f"{row['psnr']:.0f} dB" in verdict["note"]
    assert abs(row["psnr"] - 10 * np.log10(4 * 192 / error**2)) < 1e-6
