"""sglang-35771: the reported fault, remade (field/remade.py)."""

import remade


def verifier(fixed=False):
    """Make the verifier."""
    return remade.make_verifier("sglang-35771", fixed)
