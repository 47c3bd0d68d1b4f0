"""Clover: `evaluate_posterior`, with the processor that a temperature makes."""

import borrowed


def verifier(temperature=1.0, mend=False):
    """Make a verifier of a tree by their `evaluate_posterior`, with `mend` corrected by `borrowed.EAGLE_MEND`."""
    return borrowed.eagle_verifier("clover/model/utils.py", temperature, mend, certain=False)
