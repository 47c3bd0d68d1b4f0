"""tensorrt-llm-15098: the reported fault, remade (field/remade.py)."""

import remade


def verifier(fixed=False):
    """Make the verifier."""
    return remade.make_verifier("tensorrt-llm-15098", fixed)
