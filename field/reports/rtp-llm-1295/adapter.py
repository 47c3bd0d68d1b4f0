"""rtp-llm-1295: the reported fault, remade (field/remade.py)."""

import remade


def verifier(fixed=False):
    """Make the verifier."""
    return remade.make_verifier("rtp-llm-1295", fixed)
