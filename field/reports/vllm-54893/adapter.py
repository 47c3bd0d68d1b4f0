"""vllm-54893: the reported fault, remade (field/remade.py)."""

import remade


def verifier(fixed=False):
    """Make the verifier."""
    return remade.make_verifier("vllm-54893", fixed)
