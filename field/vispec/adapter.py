"""ViSpec: `evaluate_posterior`, with the processor that a temperature makes."""

import borrowed


def verifier(temperature=1.0):
    """Make a verifier of a tree by their `evaluate_posterior`."""
    return borrowed.eagle_verifier("vispec/model/utils.py", temperature, mend=False)
