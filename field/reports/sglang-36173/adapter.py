"""sglang-36173: the reported fault, remade (field/remade.py)."""

import remade


def design(models, fixed=False):
    """Make the conditions of the default design."""
    return remade.make_design(models, "sglang-36173", fixed)
