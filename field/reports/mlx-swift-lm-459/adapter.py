"""mlx-swift-lm-459: the reported fault, remade (field/remade.py)."""

import remade


def verifier(fixed=False):
    """Make the verifier."""
    return remade.make_verifier("mlx-swift-lm-459", fixed)
